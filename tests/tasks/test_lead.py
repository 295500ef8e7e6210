"""The lead-n baseline: its summaries, ROUGE of a small case by hand, and the published order on the real data."""

import os

import pytest
import torch

from qkv.config import build
from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import ConfigError
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.registry import lookup
from qkv.tasks.base.lead import evaluate_lead, lead, lead_scores
from qkv.tasks.base.train_config import TrainConfig
from qkv.tasks.translation import TranslationConfig, TranslationTask
from qkv.tokenizers import CharTokenizer
from tests.datasets.build import load

real = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")
CHAT = "Ann: Hi. Bye. | Bob: Yes | Ann: No | Bob: Maybe"


@pytest.mark.parametrize(
    ("text", "separator", "count", "expected"),
    [
        (CHAT, " | ", 3, "Ann: Hi. Bye. Bob: Yes Ann: No"),
        (CHAT, " | ", 1, "Ann: Hi. Bye."),
        (CHAT, " | ", 9, "Ann: Hi. Bye. Bob: Yes Ann: No Bob: Maybe"),
        ("One dog. Two cats! Three? Four.", "", 3, "One dog. Two cats! Three?"),
        ("", "", 3, ""),
    ],
)
def test_the_first_sentences_or_utterances_are_the_summary(text, separator, count, expected):
    assert lead(text, separator, count) == expected


def test_rouge_of_a_small_case_equals_the_definition():
    """Lead-1 is "a b c d": two of four words, one of three pairs, and a subsequence of two, of a reference of three."""
    scores = lead_scores([Pair("a b c d | e", "b c x")], " | ", 1)
    f1 = 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)
    assert scores == pytest.approx({"rouge_1": f1, "rouge_2": 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2), "rouge_l": f1})


def evaluate_chats(separator: str) -> dict[str, float]:
    tokenizer = CharTokenizer.train([CHAT])
    torch.manual_seed(0)
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer), "max_length": 60}
    model = RNNSeq2Seq(RNNSeq2SeqConfig(embedding_dim=4, hidden_dim=4, copying=True, **sizes)).eval()
    model.tokenizer = tokenizer
    data = PairDataset({"test": [Pair(CHAT, "Ann: Bob"), Pair(f"{CHAT} | {CHAT}", "Ann")]}, separator=separator)
    task = TranslationTask.for_evaluation(data, model, TranslationConfig(), TrainConfig(), 0)
    evaluation = task.evaluate(model, data, "test")
    assert evaluation.skipped == 1
    assert set(evaluation.scores) <= {*TranslationTask.metrics, *TranslationTask.test_metrics}
    return dict(evaluation.scores)


def test_an_evaluation_of_summaries_has_the_baseline_on_the_same_pairs():
    scores = evaluate_chats(" | ")
    expected = lead_scores([Pair(CHAT, "Ann: Bob")], " | ")
    assert {name: scores[f"lead_{name}"] for name in expected} == expected
    assert not any(name.startswith("lead") for name in evaluate_chats(""))


@real
def test_lead_3_of_the_test_chats():
    """Equal to rouge_score's own tokenizer on the same texts, since almost all of their words are ASCII."""
    from rouge_score.rouge_scorer import RougeScorer

    data = load("samsum")
    scores = evaluate_lead(data, "test").scores
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    theirs = [scorer.score(pair.target, lead(pair.source, data.separator)) for pair in data.splits["test"]]
    for name, key in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")):
        assert scores[name] == pytest.approx(sum(score[key].fmeasure for score in theirs) / len(theirs), abs=2e-3)


def test_a_recipe_with_two_tokenizers_cannot_copy():
    data = build(lookup("dataset", "samsum"), {"tokenizer": "bpe", "target_tokenizer": "word"}, "data")
    with pytest.raises(ConfigError, match="copying"):
        TranslationTask.check_recipe(TranslationConfig(), data, RNNSeq2SeqConfig(copying=True))

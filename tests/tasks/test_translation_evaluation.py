"""Evaluation of translators and of pronunciations."""

import pytest
import torch

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.metrics.rouge import ROUGE_SIGNATURE
from qkv.metrics.text_metrics import BUCKETS, Bucket, bleu_by_length, pronunciation_scores, tokenised_bleu
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.pipelines.translator import Translator
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.train_config import TrainConfig
from qkv.tasks.translation import TranslationConfig, TranslationTask
from qkv.tokenizers import CharTokenizer


@pytest.fixture
def model() -> RNNSeq2Seq:
    """A model that always predicts "a", up to its maximum length."""
    tokenizer = CharTokenizer.train(["abc"])
    torch.manual_seed(0)
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer)}
    model = RNNSeq2Seq(RNNSeq2SeqConfig(**sizes, embedding_dim=4, hidden_dim=4, max_length=20)).eval()
    bias = torch.zeros(len(tokenizer))
    bias[tokenizer.encode("a")[0]] = 50.0
    model.readout.register_forward_hook(lambda module, inputs, output: output + bias)
    model.tokenizer = tokenizer
    return model


def evaluate(model: RNNSeq2Seq, pairs: list[Pair], language: str = "", **options) -> Evaluation:
    data = PairDataset({"test": pairs}, target_language=language, pronunciations=options.pop("pronunciations", False))
    task = TranslationTask.for_evaluation(data, model, TranslationConfig(), TrainConfig(), 0)
    return task.evaluate(model, data, "test", **options)


def test_correct_answers_are_counted(model):
    text = "a" * 20
    evaluation = evaluate(model, [Pair("abc", text), Pair("cb", "b" + text[1:])])
    assert (evaluation.size, evaluation.unit) == (2, "pairs")
    assert evaluation.scores["exact"] == 0.5
    assert evaluation.scores["cer"] == pytest.approx(1 / 40)
    assert [mistake[:3] for mistake in evaluation.mistakes] == [("cb", text, "b" + text[1:])]
    assert evaluation.outputs == (text, text)
    assert "alignment" not in evaluation.scores
    assert all("version:" in evaluation.signatures[name] for name in ("bleu", "chrf"))


def test_alignment_is_scored_if_gold_is_known(model):
    strongest = int(Translator(model)("abc").alignment[0].argmax())
    right, wrong = (strongest, strongest + 1), ((strongest + 1) % 3, (strongest + 1) % 3 + 1)
    for gold, target, accuracy in (((right,), "a", 1.0), ((wrong,), "a", 0.0), ((right, None), "aa", 1.0)):
        assert evaluate(model, [Pair("abc", target, gold)]).scores["alignment"] == accuracy


def test_progress_is_reported_for_every_pair(model):
    counts: list[int] = []
    evaluate(model, [Pair("abc", "a"), Pair("a", "b"), Pair("cc", "b")], progress=counts.append)
    assert counts == [1, 2, 3]


def test_an_empty_split_is_an_error(model):
    with pytest.raises(InputError, match="pairs"):
        evaluate(model, [])


def test_pairs_that_are_too_long_are_skipped(model):
    pairs = [Pair("abc", "a"), Pair("a" * 30, "a"), Pair("b", "a")]
    evaluation = evaluate(model, pairs)
    assert (evaluation.size, evaluation.skipped) == (2, 1)


def test_every_score_has_its_name_and_signature(model):
    evaluation = evaluate(model, [Pair("abc", "a b"), Pair("cb", "b")], "de")
    names = ["exact", "cer", "bleu", "bleu_lowercased", "chrf", "bleu_tokenised", "rouge_1", "rouge_2", "rouge_l"]
    assert list(evaluation.scores) == names
    assert set(names) <= {*TranslationTask.metrics, *TranslationTask.test_metrics}
    assert "case:mixed" in evaluation.signatures["bleu"]
    assert "case:lc" in evaluation.signatures["bleu_lowercased"]
    assert evaluation.signatures["bleu_tokenised"].endswith("|words:moses-de")


def test_rouge_is_computed(model):
    text = "a" * 20
    evaluation = evaluate(model, [Pair("abc", f"{text} b"), Pair("cb", "b")])  # one of one word, and of two
    rouge = [evaluation.scores[f"rouge_{kind}"] for kind in "12l"]
    assert rouge == [pytest.approx(1 / 3), 0.0, pytest.approx(1 / 3)]
    assert evaluation.signatures["rouge_l"] == ROUGE_SIGNATURE


def test_pairs_are_bucketed_by_source_words():
    sources = ["w " * words for words in range(1, 41)]
    references = [f"eins zwei drei vier {words}" for words in range(1, 41)]
    texts = ["nichts davon ist hier richtig", *references[1:]]  # the first is one word
    buckets = bleu_by_length(texts, sources, references, "de")
    assert [(bucket.least, bucket.most) for bucket in buckets] == list(BUCKETS)
    assert [bucket.pairs for bucket in buckets] == [7, 2, 2, 2, 3, 4, 20]
    assert buckets[0].bleu == pytest.approx(tokenised_bleu(texts[:7], references[:7], "de").value)
    assert buckets[0].bleu < 90
    assert all(bucket.bleu == pytest.approx(100) for bucket in buckets[1:])


def test_empty_buckets_are_omitted():
    texts, references = ["ein hund steht dort"], ["ein hund steht da"]
    score = tokenised_bleu(texts, references, "de").value
    buckets = bleu_by_length(texts, ["a dog is there on the grass today"], references, "de")
    assert buckets == (Bucket(8, 9, 1, score),)


def test_buckets_without_a_four_gram_are_omitted():
    dates, sources = ["2009-08-10", "2037-07-14"], ["10 August 2009", "14/7/2037"]
    assert tokenised_bleu(dates, dates, "").value == 0.0  # although all are correct
    assert bleu_by_length(dates, sources, dates, "") == ()
    (bucket,) = bleu_by_length([*dates, "wrong"], [*sources, "w"], [*dates, "one two three four"], "")
    assert bucket.pairs == 3


def test_pronunciations_are_scored_per_word_against_all_variants(model):
    text = "a" * 20
    entries = [Pair("ab", "b"), Pair("c", "c c"), Pair("ab", text)]  # two words, one with two pronunciations
    evaluation = evaluate(model, entries, pronunciations=True)
    assert (evaluation.size, evaluation.outputs) == (3, (text, text))
    assert evaluation.scores == {"per": pytest.approx(2 / 3), "wer": 0.5}
    assert evaluation.mistakes == (("c", text, "c c", 0.0),)  # both phonemes are wrong


def test_phoneme_and_word_error_rates():
    references = [["R EH1 D", "R IY1 D"], ["K AE1 T"], ["AH0", "EY1"]]
    scores = pronunciation_scores(["R IY1 D", "K AE1", "EY1"], references)
    assert scores["wer"].value == 1 / 3
    assert scores["per"].value == 1 / 7  # one of 3 + 3 + 1 phonemes is missing

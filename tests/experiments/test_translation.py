"""Evaluation reports of translators."""

import pytest
import torch
from qkv.experiments.translation import BUCKETS, bleu_by_length, evaluate

from qkv.datasets.pair import Pair
from qkv.errors import InputError
from qkv.experiments.results import Bucket
from qkv.metrics import ROUGE_SIGNATURE, tokenised_bleu
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.pipelines.translator import Search, Translator
from qkv.tokenizers import CharTokenizer


@pytest.fixture
def translator() -> Translator:
    tokenizer = CharTokenizer.train(["abc"])
    torch.manual_seed(0)
    model = RNNSeq2Seq(
        RNNSeq2SeqConfig(
            source_vocab_size=len(tokenizer),
            target_vocab_size=len(tokenizer),
            embedding_dim=4,
            hidden_dim=4,
            max_length=20,
        )
    )
    bias = torch.zeros(len(tokenizer))  # always predict "a"
    bias[tokenizer.encode("a")[0]] = 50.0
    model.output.register_forward_hook(lambda module, inputs, output: output + bias)
    return Translator(model.eval(), tokenizer)


def test_the_report_counts_correct_answers(translator):
    text = translator("abc").text
    assert text == "a" * 20
    report = evaluate(translator, [Pair("abc", text), Pair("cb", "b" + text[1:])])
    assert report.pairs == 2
    assert report.exact == 0.5
    assert report.cer == pytest.approx(1 / 40)
    assert report.mistakes == (("cb", text, "b" + text[1:]),)
    assert report.alignment is None
    assert "version:" in report.bleu_signature
    assert "version:" in report.chrf_signature


def test_alignment_is_scored_if_gold_is_known(translator):
    weights = translator("abc").alignment
    strongest = int(weights[0].argmax())
    right, wrong = (strongest, strongest + 1), ((strongest + 1) % 3, (strongest + 1) % 3 + 1)
    assert evaluate(translator, [Pair("abc", "a", (right,))]).alignment == 1.0
    assert evaluate(translator, [Pair("abc", "a", (wrong,))]).alignment == 0.0
    assert evaluate(translator, [Pair("abc", "aa", (right, None))]).alignment == 1.0


def test_progress_is_reported_for_every_pair(translator):
    counts: list[int] = []
    evaluate(translator, [Pair("abc", "a"), Pair("a", "b"), Pair("cc", "b")], progress=counts.append)
    assert counts == [1, 2, 3]


def test_an_empty_evaluation_set_is_an_error(translator):
    with pytest.raises(InputError, match="pairs"):
        evaluate(translator, [])


def test_every_score_of_a_report_has_its_name_and_signature(translator):
    scores = evaluate(translator, [Pair("abc", "a b"), Pair("cb", "b")], search=Search(2), language="de").scores()
    assert list(scores) == ["exact", "cer", "bleu", "bleu_lowercased", "chrf", "bleu_tokenised"]
    assert "case:mixed" in scores["bleu"].signature
    assert "case:lc" in scores["bleu_lowercased"].signature
    assert scores["bleu_tokenised"].signature.endswith("|words:moses-de")
    weights = translator("abc").alignment
    gold = (int(weights[0].argmax()), int(weights[0].argmax()) + 1)
    assert evaluate(translator, [Pair("abc", "a", (gold,))]).scores()["alignment"].value == 1.0


def test_rouge_is_computed_on_request(translator):
    text = translator("abc").text
    pairs = [Pair("abc", f"{text} b"), Pair("cb", "b")]  # one of one word, and of two
    assert evaluate(translator, pairs).rouge_l is None
    report = evaluate(translator, pairs, rouge=True)
    assert (report.rouge_1, report.rouge_2, report.rouge_l) == (pytest.approx(1 / 3), 0.0, pytest.approx(1 / 3))
    scores = report.scores()
    assert list(scores) == ["exact", "cer", "bleu", "bleu_lowercased", "chrf", "rouge_1", "rouge_2", "rouge_l"]
    assert [scores[name].value for name in ("rouge_1", "rouge_2")] == [report.rouge_1, report.rouge_2]
    assert scores["rouge_l"].signature == ROUGE_SIGNATURE


def test_pairs_are_bucketed_by_source_words():
    pairs = [Pair("w " * words, f"eins zwei drei vier {words}") for words in range(1, 41)]
    texts = [pair.target for pair in pairs]
    texts[0] = "nichts davon ist hier richtig"  # one word
    buckets = bleu_by_length(texts, pairs, "de")
    assert [(bucket.least, bucket.most) for bucket in buckets] == list(BUCKETS)
    assert [bucket.pairs for bucket in buckets] == [7, 2, 2, 2, 3, 4, 20]
    assert buckets[0].bleu == pytest.approx(tokenised_bleu(texts[:7], [pair.target for pair in pairs[:7]], "de").value)
    assert buckets[0].bleu < 90
    assert all(bucket.bleu == pytest.approx(100) for bucket in buckets[1:])


def test_empty_buckets_are_omitted():
    assert bleu_by_length(
        ["ein hund steht dort"], [Pair("a dog stands there on the grass today", "ein hund steht da")], "de"
    ) == (Bucket(8, 9, 1, pytest.approx(tokenised_bleu(["ein hund steht dort"], ["ein hund steht da"], "de").value)),)

"""Reports: the numbers are those of the answers."""

import pytest
import torch

from qkv.data.pair import Pair
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.evaluation.translation import evaluate
from qkv.models.rnn_seq2seq import Config, RNNSeq2Seq
from qkv.tasks.translator import Translator


@pytest.fixture
def translator() -> Translator:
    vocabulary = Vocabulary.train(["abc"], "char")
    torch.manual_seed(0)
    model = RNNSeq2Seq(Config(len(vocabulary), len(vocabulary), embedding=4, hidden=4, max_length=20))
    with torch.no_grad():  # a model that always says "a", "a", ... to the end
        model.decoder.readout[3].bias[vocabulary.encode("a").ids[0]] = 50.0
    return Translator(model.eval(), vocabulary)


def test_the_report_counts_what_was_right(translator):
    said = translator("abc").text
    assert said == "a" * 20
    report = evaluate(translator, [Pair("abc", said), Pair("cb", "b" + said[1:])])
    assert report.pairs == 2
    assert report.exact == 0.5
    assert report.cer == pytest.approx(1 / 40)
    assert report.mistakes == (("cb", said, "b" + said[1:]),)
    assert report.alignment is None
    assert "version:" in report.bleu_signature
    assert "version:" in report.chrf_signature


def test_alignment_is_scored_where_gold_is_known(translator):
    weights = translator("abc").alignment
    strongest = int(weights[0].argmax())
    right, wrong = (strongest, strongest + 1), ((strongest + 1) % 3, (strongest + 1) % 3 + 1)
    assert evaluate(translator, [Pair("abc", "a", (right,))]).alignment == 1.0
    assert evaluate(translator, [Pair("abc", "a", (wrong,))]).alignment == 0.0
    assert evaluate(translator, [Pair("abc", "aa", (right, None))]).alignment == 1.0


def test_progress_is_told_up_to_the_last_pair(translator):
    told: list[int] = []
    evaluate(translator, [Pair("abc", "a"), Pair("a", "b"), Pair("cc", "b")], progress=told.append)
    assert told == [1, 2, 3]


def test_nothing_to_evaluate_on_is_an_error(translator):
    with pytest.raises(InputError, match="no pairs"):
        evaluate(translator, [])

"""Translation with untrained models: what must hold before any training."""

import numpy as np
import pytest
import torch

import qkv
from qkv.data.batching import EncodedPair, collate
from qkv.data.vocabulary import BEGIN, TwoVocabularies, Vocabulary
from qkv.errors import InputError
from qkv.generation import Sampling
from qkv.interop import save_model
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
from qkv.tasks.translator import Search, Translator

TEXTS = ["abc", "a", "bb ccc a", "cab cab"]
MODELS = {  # each with its sizes, and how far its weights are spread: so that answers differ from text to text
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config, {"embedding": 6, "hidden": 8}, 0.7),
    "conv_seq2seq": (
        conv_seq2seq.ConvSeq2Seq,
        conv_seq2seq.Config,
        {"dim": 8, "hidden": 8, "encoder_layers": 2, "decoder_layers": 2},
        0.3,
    ),
    "transformer": (
        transformer.Transformer,
        transformer.Config,
        {"dim": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feedforward": 8},
        0.7,
    ),
}


@pytest.fixture(params=MODELS)
def translator(request: pytest.FixtureRequest) -> Translator:
    vocabulary = Vocabulary.train(TEXTS, "char")
    network, config, sizes, std = MODELS[request.param]
    torch.manual_seed(3)
    model = network(config(len(vocabulary), len(vocabulary), max_length=12, **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return Translator(model.eval(), vocabulary)


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_come_in_the_order_of_the_texts_and_do_not_depend_on_each_other(translator, beam):
    together = translator.translate(TEXTS, Search(beam, n_best=beam))
    assert [answers[0].source for answers in together] == TEXTS
    for text, answers in zip(TEXTS, together, strict=True):
        alone = translator.translate([text], Search(beam, n_best=beam))[0]
        assert [answer.text for answer in alone] == [answer.text for answer in answers]
        assert [answer.score for answer in alone] == pytest.approx([answer.score for answer in answers], abs=1e-5)


def test_the_attention_shown_is_the_attention_of_the_search_itself(translator):
    """The maps come from one more pass; here the search's own steps are watched, for comparison."""
    model, vocabulary = translator.model, translator.vocabulary
    source = vocabulary.encode("bb ccc a")
    answer = translator("bb ccc a", min_length=4)
    tokens = vocabulary.encode(answer.text).ids
    batch = collate([EncodedPair(source.ids, ())])
    memory = model.encode(batch.source, batch.source_lengths)
    state = model.init_state(memory)
    with qkv.watch(model, layers=["decoder"]) as seen, torch.inference_mode():
        for token in [BEGIN, *tokens[:-1]]:
            _, state = model.step(torch.tensor([token]), state)
    shown = {attention_map.layer: attention_map.weights for attention_map in answer.maps}
    for layer, record in seen.items():
        np.testing.assert_allclose(shown[layer], record.weights[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_every_row_of_every_map_is_a_distribution_over_named_tokens(translator, beam):
    for answers in translator.translate(TEXTS, Search(beam, n_best=beam), attention=True):
        for answer in answers:
            assert answer.alignment.shape == (len(answer.maps[0].rows), len(answer.source))
            for attention_map in answer.maps:
                heads, rows, columns = attention_map.weights.shape
                assert (rows, columns) == (len(attention_map.rows), len(attention_map.columns))
                np.testing.assert_allclose(attention_map.weights.sum(-1), np.ones((heads, rows)), atol=1e-5)


def test_a_model_that_was_loaded_brings_its_own_vocabulary(translator, tmp_path):
    save_model(translator.model, translator.vocabulary, tmp_path)
    loaded = qkv.load(tmp_path, device=torch.device("cpu")).train()
    again = Translator(loaded)
    assert not loaded.training
    assert again("abc").text == translator("abc").text
    loaded.tokenizer = None
    with pytest.raises(InputError, match=f"{type(loaded).__name__}: a translator needs a vocabulary"):
        Translator(loaded)


def test_the_map_shown_first_is_the_one_from_target_to_source(translator):
    answer = translator("abc")
    assert answer.maps[0].layer == translator.model.alignment_layers[0]
    assert answer.maps[0].layer.removesuffix(".cross") in ("decoder", "decoder.1")
    assert "".join(answer.maps[0].columns) == "abc"


@pytest.mark.parametrize("beam", [1, 3])
def test_special_tokens_are_never_said(translator, beam):
    for answers in translator.translate(TEXTS, Search(beam, n_best=beam)):
        assert all(set(answer.text) <= set("abc ") for answer in answers)


def test_what_was_never_seen_is_reported_and_read_as_unknown(translator):
    answer = translator("a☃b☃é")
    assert answer.unknown == ("☃", "é")
    assert translator("abc").unknown == ()


@pytest.mark.parametrize(
    ("text", "words"), [("", "input 2 is empty"), ("a" * 13, "input 2 has 13 tokens; .* at most 12")]
)
def test_a_text_that_cannot_be_translated_is_named_before_any_work(translator, text, words):
    with pytest.raises(InputError, match=words):
        translator.translate(["abc", text])


@pytest.mark.parametrize(("beam", "n_best"), [(0, 1), (2, 3), (2, 0)])
def test_more_answers_than_beams_are_refused(beam, n_best):
    with pytest.raises(InputError, match="n-best must lie between 1 and the beam"):
        Search(beam, n_best)


def test_answers_stay_within_the_length_that_the_model_allows(translator):
    for answers in translator.translate(TEXTS, attention=True):
        assert len(answers[0].maps[0].rows) <= 12


WAYS = {
    "greedy": Search(),
    "beam": Search(3, n_best=3),
    "coverage": Search(3, n_best=2, coverage_penalty=0.3),
    "exact": Search(3, n_best=3, length_penalty=0.5, exact=True),
    "constrained": Search(2, min_length=3, max_length=6, prefix="ca"),
    "sampled": Search(n_best=3, sampling=Sampling(top_k=4, seed=7)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_search_gives_the_same_alone_and_in_a_batch_with_alignments(translator, way):
    search = WAYS[way]
    together = translator.translate(TEXTS, search, attention=True)
    for number, (text, answers) in enumerate(zip(TEXTS, together, strict=True)):
        alone = translator.translate([text], search, attention=True, numbers=[number])[0]
        assert 1 <= len(answers) <= search.n_best
        assert [answer.text for answer in alone] == [answer.text for answer in answers]
        assert [answer.score for answer in alone] == pytest.approx([answer.score for answer in answers], abs=1e-5)
        for one, other in zip(alone, answers, strict=True):
            np.testing.assert_allclose(one.alignment, other.alignment, atol=1e-5)
            assert one.words().rows == tuple(one.text.split())
            np.testing.assert_allclose(one.words().average.sum(-1), 1.0, atol=1e-5)


def test_an_exact_search_goes_on_for_longer_and_finds_nothing_worse(translator, monkeypatch):
    taken: list[int] = []
    one_step = translator.model.step
    monkeypatch.setattr(
        translator.model, "step", lambda token, state: taken.append(len(token)) or one_step(token, state)
    )

    def found(**how):
        taken.clear()
        answers = translator.translate(TEXTS, Search(3, length_penalty=0.5, **how))
        return [best.score for (best,) in answers], sum(taken)

    (hasty, few), (exact, many) = found(), found(exact=True)
    assert all(late > early - 1e-5 for early, late in zip(hasty, exact, strict=True))
    assert many > few


def test_texts_and_their_numbers_are_as_many(translator):
    with pytest.raises(InputError, match=r"4 text\(s\) were given 3 number\(s\): one for each"):
        translator.translate(TEXTS, WAYS["sampled"], numbers=[0, 1, 2])


def test_answers_keep_to_their_prefix_and_their_lengths(translator):
    for search in (WAYS["constrained"], Search(min_length=3, max_length=6, prefix="ca", sampling=Sampling())):
        for answers in translator.translate(TEXTS, search):
            for answer in answers:
                assert answer.text.startswith("ca")
                assert 3 <= len(answer.text) <= 6
    (answers,) = translator.translate(["abc"], Search(min_length=12))
    assert len(answers[0].text) == 12


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"min_length": 13}, "min-length asks for 13 tokens or more, but a translation may have 12 at most"),
        ({"prefix": "abcabc", "max_length": 5}, "the prefix 'abcabc' asks for 6 tokens or more, .* 5 at most"),
        ({"prefix": "a☃"}, "the prefix 'a☃' holds what the model never saw"),
    ],
)
def test_what_no_translation_could_keep_to_is_refused(translator, search, words):
    with pytest.raises(InputError, match=words):
        translator("abc", **search)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"coverage_penalty": 0.2}, "a coverage penalty chooses between hypotheses: it needs a beam of 2 or more"),
        ({"exact": True}, "an exact search compares hypotheses: it needs a beam of 2 or more"),
        ({"exact": True, "sampling": Sampling()}, "an exact search compares hypotheses"),
        ({"beam": 2, "coverage_penalty": -1.0}, "coverage penalty must be 0 or more"),
        ({"length_penalty": float("nan")}, "length penalty must be 0 or more"),
        ({"min_length": -1}, "min-length must be 0 or more"),
        ({"min_length": 4, "max_length": 3}, "max-length must be 1 or more and no less than min-length 4, not 3"),
        ({"max_length": 0}, "max-length must be 1 or more"),
        ({"beam": 2, "sampling": Sampling()}, "a beam of 2 is not for it"),
        ({"n_best": 0, "sampling": Sampling()}, "n-best"),
        ({"n_best": 10**18, "sampling": Sampling()}, "n-best"),
        ({"beam": 10**18, "n_best": 1}, "beam"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(search, words):
    with pytest.raises(InputError, match=words):
        Search(**search)


def test_a_model_without_attention_translates_and_has_no_alignment():
    vocabulary = Vocabulary.train(TEXTS, "char")
    size = len(vocabulary)
    config = rnn_seq2seq.Config(size, size, embedding=6, hidden=8, attention="none", max_length=12)
    translator = Translator(rnn_seq2seq.RNNSeq2Seq(config), vocabulary)
    answer = translator("abc", beam=2)
    assert (answer.maps, answer.alignment) == ((), None)
    with pytest.raises(
        InputError,
        match=r"RNNSeq2Seq: an alignment was asked of a model that has no attention .* conv_seq2seq, transformer",
    ):
        translator.check_alignment()
    with pytest.raises(InputError, match="a coverage penalty was asked of a model that has no attention"):
        translator("abc", beam=2, coverage_penalty=0.2)


def test_source_and_target_may_have_vocabularies_of_their_own():
    letters, phones = Vocabulary.train(TEXTS, "char"), Vocabulary.train(["AH B K", "EY B"], "word")
    config = rnn_seq2seq.Config(len(letters), len(phones), embedding=6, hidden=8, max_length=12)
    torch.manual_seed(2)
    translator = Translator(rnn_seq2seq.RNNSeq2Seq(config), TwoVocabularies(letters, phones))
    answer = translator("cab", min_length=3, max_length=5, prefix="K EY")
    assert answer.text.startswith("K EY ")
    assert set(answer.text.split()) <= {"AH", "B", "K", "EY"}
    assert answer.maps[0].columns == ("c", "a", "b")
    assert answer.words().rows == tuple(answer.text.split())

"""Translation with untrained models: properties that hold without training."""

import numpy as np
import pytest
import torch

import qkv
from qkv.datasets.batching import EncodedPair, collate
from qkv.errors import InputError
from qkv.generation import Sampling
from qkv.hub import save_model
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
from qkv.pipelines.translator import Search, Translator
from qkv.tokenizers.vocabulary import BEGIN, TwoVocabularies, Vocabulary

TEXTS = ["abc", "a", "bb ccc a", "cab cab"]
MODELS = {  # class, config, sizes, and std of the weights, chosen so that answers differ between texts
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config, {"embedding": 6, "hidden": 8}, 0.7),
    "conv_seq2seq": (
        conv_seq2seq.ConvSeq2Seq,
        conv_seq2seq.Config,
        {"dim": 8, "hidden": 8, "encoder_layers": 2, "decoder_layers": 2},
        0.3,
    ),
    "transformer": (
        transformer.Transformer,
        transformer.TransformerConfig,
        {"dim": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ffn_dim": 8},
        0.7,
    ),
}


@pytest.fixture(params=MODELS)
def translator(request: pytest.FixtureRequest) -> Translator:
    vocabulary = Vocabulary.train(TEXTS, "char")
    network, config, sizes, std = MODELS[request.param]
    torch.manual_seed(3)
    model = network(
        config(source_vocab_size=len(vocabulary), target_vocab_size=len(vocabulary), max_length=12, **sizes)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return Translator(model.eval(), vocabulary)


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_are_in_order_and_do_not_depend_on_the_batch(translator, beam):
    together = translator.translate(TEXTS, Search(beam, n_best=beam))
    assert [answers[0].source for answers in together] == TEXTS
    for text, answers in zip(TEXTS, together, strict=True):
        alone = translator.translate([text], Search(beam, n_best=beam))[0]
        assert [answer.text for answer in alone] == [answer.text for answer in answers]
        assert [answer.score for answer in alone] == pytest.approx([answer.score for answer in answers], abs=1e-5)


def test_maps_equal_the_attention_of_the_search(translator):
    """The maps come from one more forward pass; compare them with recordings of the decoding steps."""
    model, vocabulary = translator.model, translator.vocabulary
    source = vocabulary.encode("bb ccc a")
    answer = translator("bb ccc a", min_length=4)
    tokens = vocabulary.encode(answer.text).ids
    batch = collate([EncodedPair(source.ids, ())])
    memory = model.encode(batch.source, batch.source_lengths)
    state = model.init_state(memory)
    with qkv.watch(model, layers=["decoder"]) as records, torch.inference_mode():
        for token in [BEGIN, *tokens[:-1]]:
            _, state = model.step(torch.tensor([token]), state)
    shown = {attention_map.layer: attention_map.weights for attention_map in answer.maps}
    for layer, record in records.items():
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


def test_a_loaded_model_brings_its_vocabulary(translator, tmp_path):
    save_model(translator.model, translator.vocabulary, tmp_path)
    loaded = qkv.load(tmp_path, device=torch.device("cpu")).train()
    again = Translator(loaded)
    assert not loaded.training
    assert again("abc").text == translator("abc").text
    loaded.tokenizer = None
    with pytest.raises(InputError, match=f"{type(loaded).__name__}: no vocabulary"):
        Translator(loaded)


def test_the_first_map_is_the_alignment(translator):
    answer = translator("abc")
    assert answer.maps[0].layer == translator.model.alignment_layers[0]
    assert answer.maps[0].layer.removesuffix(".cross") in ("decoder", "decoder.1")
    assert "".join(answer.maps[0].columns) == "abc"


@pytest.mark.parametrize("beam", [1, 3])
def test_special_tokens_are_never_generated(translator, beam):
    for answers in translator.translate(TEXTS, Search(beam, n_best=beam)):
        assert all(set(answer.text) <= set("abc ") for answer in answers)


def test_unknown_characters_are_reported(translator):
    answer = translator("a☃b☃é")
    assert answer.unknown == ("☃", "é")
    assert translator("abc").unknown == ()


@pytest.mark.parametrize(
    ("text", "words"), [("", "input 2 is empty"), ("a" * 13, "input 2 has 13 tokens; .* at most 12")]
)
def test_invalid_texts_are_named(translator, text, words):
    with pytest.raises(InputError, match=words):
        translator.translate(["abc", text])


@pytest.mark.parametrize(("beam", "n_best"), [(0, 1), (2, 3), (2, 0)])
def test_n_best_must_not_exceed_the_beam(beam, n_best):
    with pytest.raises(InputError, match="must be between 1 and"):
        Search(beam, n_best)


def test_answers_are_at_most_max_length(translator):
    for answers in translator.translate(TEXTS, attention=True):
        assert len(answers[0].maps[0].rows) <= 12


SEARCHES = {
    "greedy": Search(),
    "beam": Search(3, n_best=3),
    "coverage": Search(3, n_best=2, coverage_penalty=0.3),
    "exact": Search(3, n_best=3, length_penalty=0.5, exact=True),
    "constrained": Search(2, min_length=3, max_length=6, prefix="ca"),
    "sampled": Search(n_best=3, sampling=Sampling(top_k=4, seed=7)),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_gives_the_same_alone_and_in_a_batch(translator, name):
    search = SEARCHES[name]
    together = translator.translate(TEXTS, search, attention=True)
    for number, (text, answers) in enumerate(zip(TEXTS, together, strict=True)):
        alone = translator.translate([text], search, attention=True, numbers=[number])[0]
        assert 1 <= len(answers) <= search.n_best
        assert [answer.text for answer in alone] == [answer.text for answer in answers]
        assert [answer.score for answer in alone] == pytest.approx([answer.score for answer in answers], abs=1e-5)
        for single, batched in zip(alone, answers, strict=True):
            np.testing.assert_allclose(single.alignment, batched.alignment, atol=1e-5)
            assert single.words().rows == tuple(single.text.split())
            np.testing.assert_allclose(single.words().average.sum(-1), 1.0, atol=1e-5)


def test_exact_search_takes_more_steps_and_is_never_worse(translator, monkeypatch):
    steps: list[int] = []
    model_step = translator.model.step
    monkeypatch.setattr(
        translator.model, "step", lambda token, state: steps.append(len(token)) or model_step(token, state)
    )

    def run(**options):
        steps.clear()
        answers = translator.translate(TEXTS, Search(3, length_penalty=0.5, **options))
        return [best.score for (best,) in answers], sum(steps)

    (default, few), (exact, many) = run(), run(exact=True)
    assert all(late > early - 1e-5 for early, late in zip(default, exact, strict=True))
    assert many > few


def test_one_number_per_text_is_required(translator):
    with pytest.raises(InputError, match="number"):
        translator.translate(TEXTS, SEARCHES["sampled"], numbers=[0, 1, 2])


def test_answers_respect_prefix_and_length_constraints(translator):
    for search in (SEARCHES["constrained"], Search(min_length=3, max_length=6, prefix="ca", sampling=Sampling())):
        for answers in translator.translate(TEXTS, search):
            for answer in answers:
                assert answer.text.startswith("ca")
                assert 3 <= len(answer.text) <= 6
    (answers,) = translator.translate(["abc"], Search(min_length=12))
    assert len(answers[0].text) == 12


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"min_length": 13}, "min-length requires at least 13 tokens"),
        ({"prefix": "abcabc", "max_length": 5}, "the prefix 'abcabc' requires at least 6 tokens"),
        ({"prefix": "a☃"}, "the prefix 'a☃'"),
    ],
)
def test_unsatisfiable_constraints_are_errors(translator, search, words):
    with pytest.raises(InputError, match=words):
        translator("abc", **search)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"coverage_penalty": 0.2}, "coverage penalty"),
        ({"exact": True}, "exact search"),
        ({"exact": True, "sampling": Sampling()}, "exact search"),
        ({"beam": 2, "coverage_penalty": -1.0}, "coverage penalty"),
        ({"length_penalty": float("nan")}, "length penalty"),
        ({"min_length": -1}, "min-length"),
        ({"min_length": 4, "max_length": 3}, "max-length"),
        ({"max_length": 0}, "max-length"),
        ({"beam": 2, "sampling": Sampling()}, "beam of 2"),
        ({"n_best": 0, "sampling": Sampling()}, "n-best"),
        ({"n_best": 10**18, "sampling": Sampling()}, "n-best"),
        ({"beam": 10**18, "n_best": 1}, "beam"),
    ],
)
def test_invalid_search_settings_are_errors(search, words):
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
        match=r"RNNSeq2Seq: an alignment .* conv_seq2seq, transformer",
    ):
        translator.check_alignment()
    with pytest.raises(InputError, match="a coverage penalty"):
        translator("abc", beam=2, coverage_penalty=0.2)


def test_source_and_target_can_have_separate_vocabularies():
    letters, phones = Vocabulary.train(TEXTS, "char"), Vocabulary.train(["AH B K", "EY B"], "word")
    config = rnn_seq2seq.Config(len(letters), len(phones), embedding=6, hidden=8, max_length=12)
    torch.manual_seed(2)
    translator = Translator(rnn_seq2seq.RNNSeq2Seq(config), TwoVocabularies(letters, phones))
    answer = translator("cab", min_length=3, max_length=5, prefix="K EY")
    assert answer.text.startswith("K EY ")
    assert set(answer.text.split()) <= {"AH", "B", "K", "EY"}
    assert answer.maps[0].columns == ("c", "a", "b")
    assert answer.words().rows == tuple(answer.text.split())

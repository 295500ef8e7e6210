"""Translation with untrained models: what must hold before any training."""

import numpy as np
import pytest
import torch

import qkv
from qkv.data.batching import EncodedPair, collate
from qkv.data.vocabulary import BEGIN, Vocabulary
from qkv.errors import InputError
from qkv.interop import save_model
from qkv.models import MODELS
from qkv.tasks.translator import Search, Translator

TEXTS = ["abc", "a", "bb ccc a", "cab cab"]
SIZES = {
    "rnn_seq2seq": {"embedding": 6, "hidden": 8, "max_length": 12},
    "transformer": {"dim": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feedforward": 8, "max_length": 12},
}


@pytest.fixture(params=MODELS)
def translator(request: pytest.FixtureRequest) -> Translator:
    vocabulary = Vocabulary.train(TEXTS, "char")
    network, config = MODELS[request.param]
    torch.manual_seed(3)
    model = network(config(len(vocabulary), len(vocabulary), **SIZES[request.param]))
    for parameter in model.parameters():  # so that answers differ from text to text
        torch.nn.init.normal_(parameter, std=0.7)
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
    answer = translator("bb ccc a")
    tokens = vocabulary.encode(answer.text).ids
    batch = collate([EncodedPair(source.ids, ())])
    memory = model.encode(batch.source, batch.source_lengths)
    state = model.start(memory)
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
    assert answer.maps[0].layer in ("decoder", "decoder.1.cross")
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

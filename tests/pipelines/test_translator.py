"""Translation with untrained models: properties that hold without training."""

import numpy as np
import pytest
import torch

import qkv
from qkv.datasets.batching import EncodedPair, collate
from qkv.errors import InputError
from qkv.generation import GenerationConfig, Sampling
from qkv.hub import save_model
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
from qkv.pipelines.output import Answer
from qkv.pipelines.translator import Translator
from qkv.tokenizers import CharTokenizer, PairTokenizer, WordTokenizer
from qkv.tokenizers.trained import BEGIN

TEXTS = ["abc", "a", "bb ccc a", "cab cab"]
MODELS = {  # class, config, sizes, and std of the weights, chosen so that answers differ between texts
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.RNNSeq2SeqConfig, {"embedding_dim": 6, "hidden_dim": 8}, 0.7),
    "conv_seq2seq": (
        conv_seq2seq.ConvSeq2Seq,
        conv_seq2seq.ConvSeq2SeqConfig,
        {"dim": 8, "hidden_dim": 8, "layers": 2},
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
    tokenizer = CharTokenizer.train(TEXTS)
    network, config, sizes, std = MODELS[request.param]
    torch.manual_seed(3)
    model = network(config(source_vocab_size=len(tokenizer), target_vocab_size=len(tokenizer), max_length=12, **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return Translator(model.eval(), tokenizer)


def test_one_text_gives_one_answer_and_a_list_a_list(translator):
    assert isinstance(translator("abc"), Answer)
    assert [answer.text for answer in translator(["abc"])] == [translator("abc").text]
    assert translator([]) == []
    first, second = translator("abc", num_beams=2, num_return_sequences=2)
    assert first.score >= second.score
    assert [[a.text for a in row] for row in translator(["abc"], num_beams=2, num_return_sequences=2)] == [
        [first.text, second.text]
    ]


@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_answers_are_in_order_and_do_not_depend_on_the_batch(translator, num_beams, batch_size):
    together = translator(TEXTS, num_beams=num_beams, batch_size=batch_size)
    assert [answer.source for answer in together] == TEXTS
    for text, answer in zip(TEXTS, together, strict=True):
        alone = translator(text, num_beams=num_beams)
        assert alone.text == answer.text
        assert alone.score == pytest.approx(answer.score, abs=1e-5)


def test_attention_is_computed_on_first_access(translator, monkeypatch):
    passes: list[int] = []
    forward = translator.model.forward
    monkeypatch.setattr(
        translator.model,
        "forward",
        lambda source, *rest, **more: passes.append(len(source)) or forward(source, *rest, **more),
    )
    answers = translator(TEXTS)
    assert passes == []
    assert answers[2].attention is answers[2].attention
    assert passes == [1]
    at_once = translator(TEXTS, attention=True)
    assert passes == [1, len(TEXTS)]
    for lazy, eager in zip(answers, at_once, strict=True):
        np.testing.assert_allclose(lazy.alignment, eager.alignment, atol=1e-5)
    assert passes == [1, len(TEXTS), 1, 1, 1]


def test_maps_equal_the_attention_of_the_search(translator):
    """The maps come from one more forward pass; compare them with recordings of the decoding steps."""
    model, tokenizer = translator.model, translator.tokenizer
    source = tokenizer.encode("bb ccc a")
    answer = translator("bb ccc a", min_new_tokens=4)
    tokens = tokenizer.encode(answer.text)
    batch = collate([EncodedPair(source, ())], begin=2, end=3)
    memory = model.encode(batch.source, batch.source_lengths)
    state = model.init_state(memory)
    with qkv.watch(model, layers=["decoder"]) as records, torch.inference_mode():
        for token in [BEGIN, *tokens[:-1]]:
            _, state = model.step(torch.tensor([token]), state)
    shown = {attention_map.layer: attention_map.weights for attention_map in answer.attention}
    for layer, record in records.items():
        np.testing.assert_allclose(shown[layer], record.weights[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_every_row_of_every_map_is_a_distribution_over_named_tokens(translator, num_beams):
    config = GenerationConfig(num_beams=num_beams, num_return_sequences=num_beams)
    for _, answers in translator.stream(TEXTS, config, attention=True):
        for answer in answers:
            assert answer.alignment.shape == (len(answer.attention[0].rows), len(answer.source))
            for attention_map in answer.attention:
                heads, rows, columns = attention_map.weights.shape
                assert (rows, columns) == (len(attention_map.rows), len(attention_map.columns))
                np.testing.assert_allclose(attention_map.weights.sum(-1), np.ones((heads, rows)), atol=1e-5)


def test_a_loaded_model_brings_its_tokenizer(translator, tmp_path):
    save_model(translator.model, translator.tokenizer, tmp_path)
    loaded = qkv.load(tmp_path, device=torch.device("cpu")).train()
    again = Translator(loaded)
    assert not loaded.training
    assert again("abc").text == translator("abc").text
    loaded.tokenizer = None
    with pytest.raises(InputError, match=f"{type(loaded).__name__}: no tokenizer"):
        Translator(loaded)


def test_the_first_map_is_the_alignment(translator):
    answer = translator("abc")
    assert answer.attention[0].layer == translator.model.alignment_layers[0]
    assert answer.attention[0].layer.removesuffix(".cross") in ("decoder", "decoder.1")
    assert "".join(answer.attention[0].columns) == "abc"


@pytest.mark.parametrize("num_beams", [1, 3])
def test_special_tokens_are_never_generated(translator, num_beams):
    config = GenerationConfig(num_beams=num_beams, num_return_sequences=num_beams)
    for _, answers in translator.stream(TEXTS, config):
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
        translator(["abc", text])


def test_answers_are_at_most_max_length(translator):
    for answer in translator(TEXTS, attention=True):
        assert len(answer.attention[0].rows) <= 12


SEARCHES = {
    "greedy": {},
    "beam": {"num_beams": 3, "num_return_sequences": 3},
    "coverage": {"num_beams": 3, "num_return_sequences": 2, "coverage_penalty": 0.3},
    "exact": {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.5, "exact": True},
    "constrained": {"num_beams": 2, "min_new_tokens": 3, "max_new_tokens": 6},
    "sampled": {"num_return_sequences": 3, "sampling": Sampling(top_k=4, seed=7)},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_gives_the_same_alone_and_in_a_batch(translator, name):
    config, prefix = GenerationConfig(**SEARCHES[name]), "ca" if name == "constrained" else ""
    together = dict(translator.stream(TEXTS, config, prefix=prefix, attention=True))
    for number, text in enumerate(TEXTS):
        answers = together[number]
        ((_, alone),) = translator.stream([text], config, prefix=prefix, attention=True, row_ids=[number])
        assert 1 <= len(answers) <= config.num_return_sequences
        assert [answer.text for answer in alone] == [answer.text for answer in answers]
        assert [answer.score for answer in alone] == pytest.approx([answer.score for answer in answers], abs=1e-5)
        for single, batched in zip(alone, answers, strict=True):
            np.testing.assert_allclose(single.alignment, batched.alignment, atol=1e-5)
            assert single.words().rows == tuple(single.text.split())
            np.testing.assert_allclose(single.words().average.sum(-1), 1.0, atol=1e-5)


def test_exact_search_takes_more_steps_and_is_never_worse(translator, monkeypatch):
    monkeypatch.setattr(Translator, "engine", None)  # the simple search, whose steps can be counted
    steps: list[int] = []
    model_step = translator.model.step
    monkeypatch.setattr(
        translator.model, "step", lambda token, state: steps.append(len(token)) or model_step(token, state)
    )

    def run(**options):
        steps.clear()
        answers = translator(TEXTS, num_beams=3, length_penalty=0.5, **options)
        return [answer.score for answer in answers], sum(steps)

    (default, few), (exact, many) = run(), run(exact=True)
    assert all(late > early - 1e-5 for early, late in zip(default, exact, strict=True))
    assert many > few


def test_one_row_id_per_text_is_required(translator):
    with pytest.raises(InputError, match="row_ids"):
        list(translator.stream(TEXTS, row_ids=[0, 1, 2]))


def test_answers_respect_prefix_and_length_constraints(translator):
    limits = {"min_new_tokens": 3, "max_new_tokens": 6, "prefix": "ca"}
    for options in ({"num_beams": 2}, {"sampling": Sampling()}):
        for answer in translator(TEXTS, **limits, **options):
            assert answer.text.startswith("ca")
            assert 3 <= len(answer.text) <= 6
    assert len(translator("abc", min_new_tokens=12).text) == 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_new_tokens": 13}, "min_new_tokens .* max_new_tokens = 12"),
        ({"prefix": "abcabc", "max_new_tokens": 5}, "the prefix has 6 tokens"),
        ({"prefix": "a☃"}, "the prefix 'a☃'"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_invalid_options_are_errors(translator, options, words):
    with pytest.raises(InputError, match=words):
        translator("abc", **options)


def test_a_model_without_attention_translates_and_has_no_alignment():
    tokenizer = CharTokenizer.train(TEXTS)
    size = len(tokenizer)
    config = rnn_seq2seq.RNNSeq2SeqConfig(
        source_vocab_size=size, target_vocab_size=size, embedding_dim=6, hidden_dim=8, decoder="plain", max_length=12
    )
    translator = Translator(rnn_seq2seq.RNNSeq2Seq(config), tokenizer)
    answer = translator("abc", num_beams=2)
    assert (answer.attention, answer.alignment) == ((), None)
    with pytest.raises(
        InputError,
        match=r"RNNSeq2Seq: an alignment .* conv_seq2seq, transformer",
    ):
        translator.check_alignment()
    with pytest.raises(InputError, match="a coverage penalty"):
        translator("abc", num_beams=2, coverage_penalty=0.2)


def test_source_and_target_can_have_separate_tokenizers():
    letters, phones = CharTokenizer.train(TEXTS), WordTokenizer.train(["AH B K", "EY B"])
    config = rnn_seq2seq.RNNSeq2SeqConfig(
        source_vocab_size=len(letters), target_vocab_size=len(phones), embedding_dim=6, hidden_dim=8, max_length=12
    )
    torch.manual_seed(2)
    translator = Translator(rnn_seq2seq.RNNSeq2Seq(config), PairTokenizer(letters, phones))
    answer = translator("cab", min_new_tokens=3, max_new_tokens=5, prefix="K EY")
    assert answer.text.startswith("K EY ")
    assert set(answer.text.split()) <= {"AH", "B", "K", "EY"}
    assert answer.attention[0].columns == ("c", "a", "b")
    assert answer.words().rows == tuple(answer.text.split())

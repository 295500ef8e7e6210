"""`qkv.watch` on models of transformers, compared with output_attentions=True in eager mode."""

import pytest
import torch

import qkv
from qkv.attention.transformers_layers import QKV_EAGER
from qkv.errors import InputError

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
TOKENS = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
PADDING = (TOKENS > 0).long()


def bert():
    config = transformers.BertConfig(**SMALL)
    return (
        transformers.BertModel(config),
        {"input_ids": TOKENS, "attention_mask": PADDING},
        "encoder.layer.{}.attention.self",
    )


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4, n_positions=16)
    return (
        transformers.GPT2LMHeadModel(config),
        {"input_ids": TOKENS, "attention_mask": PADDING},
        "transformer.h.{}.attn",
    )


def llama():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)  # grouped-query attention
    return transformers.LlamaForCausalLM(config), {"input_ids": TOKENS}, "model.layers.{}.self_attn"


def gemma2():
    config = transformers.Gemma2Config(
        **SMALL, head_dim=4, num_key_value_heads=2, sliding_window=3, query_pre_attn_scalar=4
    )
    return transformers.Gemma2ForCausalLM(config), {"input_ids": TOKENS}, "model.layers.{}.self_attn"  # caps its scores


def vit():
    sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 8, 8)}, None


MODELS = [bert, gpt2, llama, gemma2, vit]


@pytest.mark.parametrize(
    ("build", "implementation"),
    [(build, name) for build in MODELS for name in ("sdpa", "eager") if (build, name) != (gemma2, "sdpa")],
)
def test_weights_equal_those_of_eager_mode_and_the_model_is_restored(build, implementation):
    torch.manual_seed(0)
    model, inputs, name = build()
    model.eval().set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
        model.set_attn_implementation(implementation)
        before = model(**inputs)[0]
        with qkv.watch(model) as seen:
            watched = model(**inputs)[0]
        after = model(**inputs)[0]
    assert len(seen) == len(expected) == 2
    for index, (record, weights) in enumerate(zip(seen.values(), expected, strict=True)):
        assert name is None or record.layer == name.format(index)
        torch.testing.assert_close(record.weights, weights, rtol=0, atol=1e-6)
        torch.testing.assert_close(record.weights.sum(-1), torch.ones(record.weights.shape[:3]))
    assert model.config._attn_implementation == implementation
    torch.testing.assert_close(watched, before, rtol=1e-4, atol=1e-5)
    assert torch.equal(after, before)


def test_self_and_cross_attention_of_an_encoder_decoder():
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16,
        pad_token_id=0, decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    inputs = {"input_ids": TOKENS, "attention_mask": PADDING, "decoder_input_ids": torch.tensor([[0, 4, 3], [0, 3, 2]])}
    with torch.no_grad(), qkv.watch(model) as seen:
        model(**inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
    layers = {"encoder.layers.0.self_attn": "encoder_attentions", "decoder.layers.0.self_attn": "decoder_attentions",
              "decoder.layers.0.encoder_attn": "cross_attentions"}  # fmt: skip
    for layer, name in layers.items():
        torch.testing.assert_close(seen[f"model.{layer}"].weights, expected[name][0], rtol=0, atol=1e-6)


def test_layers_heads_and_queries_are_selected_and_each_call_is_a_pass():
    model, inputs, _ = bert()
    with torch.no_grad(), qkv.watch(model.eval()) as everything:
        model(**inputs)
    with torch.no_grad(), qkv.watch(model, layers=1, heads=[2, 0], queries=[3]) as seen:
        model(**inputs)
        model(**inputs)
    (record,) = seen.values()
    expected = everything["encoder.layer.1.attention.self"].weights[:, [2, 0], 3:4]
    assert len(record.passes) == 2
    for weights in record.passes:
        torch.testing.assert_close(weights, expected)
    with pytest.raises(InputError, match="decoder"), qkv.watch(model, layers="decoder"):
        pass


def test_weights_are_those_before_dropout_and_gradients_flow():
    model, inputs, _ = bert()
    with qkv.watch(model.train()) as seen:
        model(**inputs).last_hidden_state.sum().backward()
    weights = seen["encoder.layer.0.attention.self"].weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))  # dropout would change the sums
    assert not weights.requires_grad
    assert model.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


def test_recordings_nest_and_an_error_inside_restores_the_model():
    model, inputs, _ = gpt2()
    model.eval()
    before = model.config._attn_implementation
    with torch.no_grad(), qkv.watch(model) as outer:
        with qkv.watch(model, layers=0) as inner:
            model(**inputs)
        assert model.config._attn_implementation == QKV_EAGER
        model(**inputs)
    with pytest.raises(ZeroDivisionError), qkv.watch(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == before
    assert [len(record.passes) for record in outer.values()] == [2, 2]
    assert [len(record.passes) for record in inner.values()] == [1]


def test_a_model_without_the_interface_is_refused_with_the_reason():
    config = transformers.XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=32)
    with pytest.raises(InputError, match="attention interface"), qkv.watch(transformers.XLNetModel(config)):
        pass
    with pytest.raises(InputError, match="no attention layer"), qkv.watch(torch.nn.Linear(2, 2)):
        pass


def without_heads(model, projection, columns, inputs):
    """The output of a model with features of the input of an output projection set to zero."""

    def zero(module, args):
        return (args[0].index_fill(-1, torch.tensor(columns), 0.0),)

    hook = model.get_submodule(projection).register_forward_pre_hook(zero)
    try:
        return model(**inputs)[0]
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("build", "projection"),
    [
        (bert, "encoder.layer.1.attention.output.dense"),
        (gpt2, "transformer.h.1.attn.c_proj"),
        (llama, "model.layers.1.self_attn.o_proj"),
        (gemma2, "model.layers.1.self_attn.o_proj"),
    ],
)
@torch.no_grad()
def test_ablated_heads_are_zero_before_the_output_projection(build, projection):
    model, inputs, _ = build()
    model.eval()
    before, implementation = model(**inputs)[0], model.config._attn_implementation
    expected = without_heads(model, projection, [4, 5, 6, 7, 12, 13, 14, 15], inputs)
    with qkv.ablate(model, 1, [1, 3]):
        torch.testing.assert_close(model(**inputs)[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(**inputs)[0], before)
    assert model.config._attn_implementation == implementation


@torch.no_grad()
def test_ablations_and_recordings_overlap_in_any_order():
    model, inputs, name = gpt2()
    model.eval()
    before, implementation = model(**inputs)[0], model.config._attn_implementation
    first = qkv.ablate(model, 0, [0])
    with qkv.watch(model) as seen:
        first.restore()
        model(**inputs)
        second = qkv.ablate(model, 0, [1])
    assert seen[name.format(1)].weights.shape == (2, 4, 5, 5)
    assert model.config._attn_implementation == QKV_EAGER
    assert not torch.allclose(model(**inputs)[0], before)
    second.restore()
    assert model.config._attn_implementation == implementation
    torch.testing.assert_close(model(**inputs)[0], before)


def test_a_head_that_a_layer_does_not_have_is_an_error_of_the_call():
    model, inputs, _ = gpt2()
    with qkv.ablate(model, 0, [4]), pytest.raises(InputError, match="head 4"):
        model(**inputs)

"""The Transformer against PyTorch's layers with the same weights, and finite differences."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qkv
from qkv.attention import Attend, PositionalEncoding, Relative
from qkv.attention.encoding import SinusoidalHalves
from qkv.errors import InputError
from qkv.models.transformer import PRESETS, Transformer, TransformerConfig
from qkv.registry import lookup, registered

SCORES = sorted(registered("score"))
POSITIONS = sorted(name for name in registered("position") if name not in ("none", "quadratic"))  # of texts
CONFIG = TransformerConfig(
    source_vocab_size=10, target_vocab_size=10, dim=12, heads=3, encoder_layers=2, decoder_layers=2, ffn_dim=20
)


def copy_attention(theirs: nn.MultiheadAttention, ours) -> None:
    theirs.in_proj_weight.copy_(ours.qkv_proj.weight)
    theirs.in_proj_bias.copy_(ours.qkv_proj.bias)
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


@torch.no_grad()
def pytorch_twin(model: Transformer) -> nn.Transformer:
    """PyTorch's Transformer with our weights."""
    c = model.config
    layer = {"d_model": c.dim, "nhead": c.heads, "dim_feedforward": c.ffn_dim, "dropout": 0.0,
             "batch_first": True, "norm_first": c.norm == "pre", "activation": c.activation}  # fmt: skip
    twin = nn.Transformer(num_encoder_layers=c.encoder_layers, num_decoder_layers=c.decoder_layers, **layer)
    for theirs, ours in zip(twin.encoder.layers, model.encoder, strict=True):
        copy_attention(theirs.self_attn, ours.attention)
        theirs.norm1.load_state_dict(ours.attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.ffn_norm.state_dict())
        theirs.linear1.load_state_dict(ours.ffn.up_proj.state_dict())
        theirs.linear2.load_state_dict(ours.ffn.down_proj.state_dict())
    for theirs, ours in zip(twin.decoder.layers, model.decoder, strict=True):
        copy_attention(theirs.self_attn, ours.self_attention)
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        theirs.norm1.load_state_dict(ours.self_norm.state_dict())
        theirs.norm2.load_state_dict(ours.cross_norm.state_dict())
        theirs.norm3.load_state_dict(ours.ffn_norm.state_dict())
        theirs.linear1.load_state_dict(ours.ffn.up_proj.state_dict())
        theirs.linear2.load_state_dict(ours.ffn.down_proj.state_dict())
    if c.norm == "pre":
        twin.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        twin.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    else:
        twin.encoder.norm = twin.decoder.norm = None
    return twin.double().eval()


def model_with(**changes: object) -> Transformer:
    """A small model in float64, with biases and norms away from 0 and 1, which could hide a mistake."""
    torch.manual_seed(0)
    model = Transformer(CONFIG.replace(**changes)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(("norm", "activation"), [("pre", "relu"), ("pre", "gelu"), ("post", "relu"), ("post", "gelu")])
def test_it_matches_nn_transformer_with_the_same_weights(norm, activation):
    model = model_with(norm=norm, activation=activation)
    twin = pytorch_twin(model)
    source, target = torch.randint(0, 10, (2, 6)), torch.randint(0, 10, (2, 4))
    lengths = torch.tensor([6, 3])
    expected = twin(
        model.source_embed(source),
        model.target_embed(target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64),
        src_key_padding_mask=torch.arange(6) >= lengths[:, None],
        memory_key_padding_mask=torch.arange(6) >= lengths[:, None],
    )
    torch.testing.assert_close(model(source, target, lengths), expected @ model.readout.weight.T)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_embeddings_and_output_can_be_tied_together_or_separately():
    tied, untied = Transformer(CONFIG), Transformer(CONFIG.replace(tie_embeddings=False))
    assert tied.readout.weight is tied.source_embed.tokens.weight is tied.target_embed.tokens.weight
    assert count(untied) - count(tied) == 2 * 10 * 12
    halfway = Transformer(CONFIG.replace(source_vocab_size=7, tie_embeddings=False, tie_output=True))
    assert halfway.readout.weight is halfway.target_embed.tokens.weight
    assert count(halfway) - count(tied) == 7 * 12


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_presets_have_the_sizes_of_the_papers():
    config = TransformerConfig(source_vocab_size=1, target_vocab_size=1, **PRESETS["base"], norm="post")
    with torch.device("meta"):
        base, big = (
            Transformer(config),
            Transformer(TransformerConfig(source_vocab_size=1, target_vocab_size=1, **PRESETS["big"], norm="post")),
        )
        theirs = nn.Transformer()  # the sizes of the base model, plus two norms
    assert count(base) == count(theirs) - 2 * 2 * 512 + 512
    # table 3 of Vaswani et al. 2017: 65 and 213 million, with the 37,000 tokens of section 5.1 (rounded up there)
    assert count(base) - 512 + 37_000 * 512 == pytest.approx(65e6, rel=0.04)
    assert count(big) - 1024 + 37_000 * 1024 == pytest.approx(213e6, rel=0.01)
    assert PRESETS["tiny"] == {"dim": 128, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "ffn_dim": 256}


def test_parameter_names_are_stable():
    names = [name for name, _ in Transformer(CONFIG).named_parameters() if ".1." not in name]
    assert names == [
        "source_embed.tokens.weight",
        *both("encoder.0", "attention.qkv_proj", "attention.out_proj", "attention_norm", "ffn.up_proj",
              "ffn.down_proj", "ffn_norm"),
        *both("encoder_norm"),
        *both("decoder.0", "self_attention.qkv_proj", "self_attention.out_proj", "self_norm",
              "cross_attention.qkv_proj", "cross_attention.out_proj", "cross_norm", "ffn.up_proj", "ffn.down_proj",
              "ffn_norm"),
        *both("decoder_norm"),
    ]  # fmt: skip
    assert not [name for name, _ in Transformer(CONFIG).named_buffers() if not name.endswith("positions.table")]


def both(layer: str, *parts: str) -> list[str]:
    paths = [f"{layer}.{part}" for part in parts] or [layer]
    return [f"{path}.{kind}" for path in paths for kind in ("weight", "bias")]


SOURCE = torch.tensor([[4, 5, 6, 7, 8, 9], [9, 8, 7, 0, 0, 0], [5, 0, 0, 0, 0, 0]])
TARGET = torch.tensor([[2, 4, 4, 9, 6], [2, 5, 7, 7, 8], [2, 9, 8, 5, 4]])
LENGTHS = torch.tensor([6, 3, 1])
CHOICES = [
    *({"position": name, "norm": norm} for name in POSITIONS for norm in ("pre", "post")),
    *({"score": name, "position": "rotary"} for name in SCORES),
    {"norm": "post", "activation": "silu", "output_bias": True, "scale_embeddings": False},
]


@pytest.mark.parametrize("changes", CHOICES, ids=lambda changes: " ".join(map(str, changes.values())))
def test_steps_and_padded_batches_match_with_all_terms(changes):
    model = model_with(**changes)
    together = model(SOURCE, TARGET, LENGTHS)
    state = model.init_state(model.encode(SOURCE, LENGTHS))
    first, state = model.forward_from(TARGET[:, :2], state)
    torch.testing.assert_close(first, together[:, :2])
    for t in (2, 3, 4):
        logits, state = model.step(TARGET[:, t], state)
        torch.testing.assert_close(logits, together[:, t])
    for row, length in enumerate(LENGTHS):
        alone = model(SOURCE[row : row + 1, :length], TARGET[row : row + 1])
        torch.testing.assert_close(alone[0], together[row])


@pytest.mark.parametrize("score", SCORES)
def test_the_score_is_used_in_every_attention_layer(score):
    with torch.device("meta"):
        model = Transformer(CONFIG.replace(score=score))
    layers = [module.score for module in model.modules() if isinstance(module, Attend)]
    assert [type(layer) for layer in layers] == [lookup("score", score)] * 6


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_encodes_order_in_exactly_one_module(position):
    model = model_with(position=position)
    assert not torch.allclose(model(SOURCE[:1], TARGET[:1]), model(SOURCE[:1, [1, 0, 2, 3, 4, 5]], TARGET[:1]))
    is_encoding = issubclass(lookup("position", position), PositionalEncoding)
    assert (model.source_embed.positions is not None) == is_encoding
    assert (model.decoder[0].self_attention.attend.position is None) == is_encoding
    assert (model.encoder[0].attention.attend.position is None) == is_encoding
    assert model.decoder[0].cross_attention.attend.position is None


def test_without_positions_the_order_of_the_source_does_not_matter():
    model = model_with()
    model.source_embed.positions = None
    torch.testing.assert_close(model(SOURCE[:1], TARGET[:1]), model(SOURCE[:1].flip(1), TARGET[:1]))


def test_relative_positions_are_separate_in_every_layer():
    model = model_with(position="relative")
    terms = [module for module in model.modules() if isinstance(module, Relative)]
    assert len(terms) == 4
    assert terms[0].key.shape == (33, 4)  # distances from -16 to 16


def test_learned_positions_cover_max_length_and_the_begin_token():
    model = model_with(position="learned", max_length=5)
    assert model(SOURCE, TARGET[:, [0, 1, 2, 3, 4, 4]], LENGTHS).shape == (3, 6, 10)
    with pytest.raises(InputError, match="position"):
        model(SOURCE, TARGET[:, [0, 1, 2, 3, 4, 4, 4]], LENGTHS)


@pytest.mark.parametrize("dim", [8, 7, 1])
def test_sinusoidal_halves_reorder_the_sinusoids(dim):
    angle = [[position / 10000 ** (2 * i / dim) for i in range((dim + 1) // 2)] for position in range(9)]
    rows = [[*map(math.sin, row), *map(math.cos, row[: dim // 2])] for row in angle]
    positions = SinusoidalHalves(dim).double()
    torch.testing.assert_close(positions(6, 3), torch.tensor(rows, dtype=torch.float64)[3:])
    torch.testing.assert_close(positions.at(torch.tensor([[8, 1]]))[0], torch.tensor(rows, dtype=torch.float64)[[8, 1]])


def test_the_output_bias_shifts_the_logits_and_starts_at_zero():
    model = model_with(output_bias=True)
    logits, bias = model(SOURCE, TARGET, LENGTHS), model.readout_bias.clone()
    nn.init.zeros_(model.readout_bias)
    torch.testing.assert_close(logits - bias, model(SOURCE, TARGET, LENGTHS))
    assert not Transformer(CONFIG.replace(output_bias=True)).readout_bias.any()


def test_embeddings_are_scaled_by_default():
    scaled, plain = model_with(), model_with(scale_embeddings=False)
    for model, scale in ((scaled, math.sqrt(12)), (plain, 1.0)):
        model.source_embed.positions = None
        torch.testing.assert_close(model.source_embed(SOURCE), scale * F.embedding(SOURCE, model.readout.weight))


def test_each_kind_of_dropout_acts_separately_and_in_training_only():
    off = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    for kind in off:
        model = model_with(**off | {kind: 0.5})
        assert model(SOURCE, TARGET, LENGTHS).equal(model(SOURCE, TARGET, LENGTHS))
        assert not model.train()(SOURCE, TARGET, LENGTHS).equal(model(SOURCE, TARGET, LENGTHS))
    model = Transformer(CONFIG.replace(dropout=0.3, attention_dropout=0.2, activation_dropout=0.0))
    for attention in (model.encoder[0].attention, model.decoder[0].self_attention, model.decoder[0].cross_attention):
        assert attention.attend.dropout == 0.2
    for block in (model.encoder[0], model.decoder[0]):
        assert (block.dropout.p, block.ffn.dropout.p) == (0.3, 0.0)
    alike = Transformer(CONFIG.replace(dropout=0.3)).decoder[1]
    assert alike.self_attention.attend.dropout == alike.ffn.dropout.p == alike.dropout.p == 0.3


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "post", "activation": "silu", "position": "sinusoidal_halves", "output_bias": True},
        {"position": "relative", "tie_embeddings": False},
        {"position": "learned", "tie_embeddings": False, "tie_output": True, "activation": "gelu_tanh"},
    ],
)
def test_gradients_match_finite_differences(changes):
    model = model_with(encoder_layers=1, decoder_layers=1, **changes)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(SOURCE, TARGET, LENGTHS).flatten(0, 1), TARGET.roll(-1, 1).flatten())

    loss().backward()
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    for _ in range(3):  # directions in the space of all weights
        directions = [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in model.parameters()]
        heights = []
        for step in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                for parameter, direction in zip(model.parameters(), directions, strict=True):
                    parameter.add_(direction, alpha=step)
                heights.append(loss())
        grad = sum((p.grad * direction).sum() for p, direction in zip(model.parameters(), directions, strict=True))
        torch.testing.assert_close((heights[0] - heights[1]) / 2e-6, grad, rtol=1e-6, atol=1e-8)


@pytest.mark.compiled
def test_post_norm_with_relative_positions_compiles_into_one_graph():
    model = model_with(norm="post", activation="silu", position="relative", output_bias=True, encoder_layers=1)
    with qkv.watch(model) as expected:
        logits = model(SOURCE, TARGET, LENGTHS)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with qkv.watch(compiled) as seen:
        torch.testing.assert_close(compiled(SOURCE, TARGET, LENGTHS), logits)
    for layer, record in expected.items():
        torch.testing.assert_close(seen[layer].weights, record.weights)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"heads": 5}, "must be divisible by heads"),
        ({"target_vocab_size": 11}, "vocabulary"),
        ({"encoder_layers": 10**6}, "layers must be"),
        ({"max_length": 0}, "max_length must be"),
        ({"dim": 2**20, "source_vocab_size": 2**20, "target_vocab_size": 2**20}, "too large"),
        ({"norm": "Pre"}, "norm = 'Pre'"),
        ({"activation": "swish"}, "activation = 'swish'"),
        ({"score": "scaled-dot"}, "score.*did you mean scaled_dot"),
        ({"position": "rotery"}, "position.*did you mean rotary"),
        ({"position": "rotary", "dim": 12}, "position 'rotary': .* must be even"),
        ({"attention_dropout": 1.0}, "attention_dropout must be"),
        ({"activation_dropout": -0.1}, "activation_dropout must be"),
        ({"begin_token": 10}, "begin_token 10 is not one of 10 tokens"),
        ({"pad_token": 8, "source_vocab_size": 8, "tie_embeddings": False}, "pad_token 8 is not one of 8 tokens"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        TransformerConfig(**{"source_vocab_size": 10, "target_vocab_size": 10} | wrong)

"""Score, alignment, position and backend are chosen by the config of every Transformer model."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.attention import Attend, Position, PositionalEncoding
from qkv.config import build, describe_fields
from qkv.errors import InputError, Unsupported
from qkv.registry import _classes, lookup, register

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 11, "layers": 2, "ffn_dim": 16, "max_length": 12, "attention_dropout": 0.0},
    "bert": {"vocab_size": 11, "layers": 2, "ffn_dim": 16, "max_length": 12, "attention_dropout": 0.0},
    "linformer": {"vocab_size": 11, "layers": 2, "ffn_dim": 16, "max_length": 12, "rank": 5, "attention_dropout": 0.0},
    "transformer": {
        "source_vocab_size": 11, "target_vocab_size": 11, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 16,
    },
    "vit": {"classes": 3, "height": 8, "width": 8, "patch": 4, "channels": 1, "layers": 2, "ffn_dim": 16},
}  # fmt: skip
MODELS = pytest.mark.parametrize("name", SIZES)
LENGTHS = torch.tensor([6, 4])


def make_model(name: str, **terms: Any) -> Any:
    """A model in float64 with weights far from zero, so that another term changes the output."""
    network = lookup("model", name)
    config = build(network.config_class, {**SIZES[name], "dim": 16, "heads": 2, "dropout": 0.0, **terms}, "test")
    torch.manual_seed(0)
    model = network(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def output(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (2, 6), generator=generator)
    match model.registered_name:
        case "gpt2":
            return model(tokens)
        case "bert" | "linformer":
            return model(tokens, lengths=LENGTHS)
        case "transformer":
            return model(tokens, tokens.flip(1), LENGTHS)
        case _:
            return model(torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=generator))


def layers(model: Any) -> list[Attend]:
    return [module for module in model.modules() if isinstance(module, Attend)]


ALIGNMENTS = [
    {"name": "softmax", "temperature": 0.3}, "hard", "sparsemax", {"name": "entmax", "alpha": 1.3}, "uniform",
    {"name": "local_m", "window": 1}, {"name": "local_p", "window": 2},
]  # fmt: skip


@MODELS
@pytest.mark.parametrize("align", ALIGNMENTS, ids=str)
def test_the_alignment_is_used_in_every_layer(name, align):
    local = not isinstance(align, str) and align["name"].startswith("local")
    if name == "linformer" and local:
        with pytest.raises(InputError, match="projected keys have no position"):
            make_model(name, align=align)
        return
    model = make_model(name, align=align)
    cls = lookup("align", align if isinstance(align, str) else align["name"])
    assert {type(layer.align) for layer in layers(model)} == {cls}
    actual = output(model)
    assert actual.isfinite().all()
    assert not actual.allclose(output(make_model(name)), atol=1e-3)
    actual.square().sum().backward()


@MODELS
def test_a_named_backend_gives_the_same_result(name):
    model = make_model(name, backend="reference")
    assert {layer.backend for layer in layers(model)} == {"reference"}
    torch.testing.assert_close(output(model), output(make_model(name)))


@MODELS
def test_a_backend_that_cannot_compute_the_terms_raises_with_the_reason(name):
    with pytest.raises(Unsupported, match="the alignment Sparsemax is not a softmax"):
        output(make_model(name, backend="sdpa", align="sparsemax"))
    with pytest.raises(InputError, match=r"backend = 'sdp' \(did you mean sdpa"):
        make_model(name, backend="sdp")


@MODELS
@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"align": {"name": "hard", "estimator": "reinforce"}}, "needs a reward"),
        ({"align": {"name": "local_m", "window": -1}}, "no position|window must be"),
        ({"align": {"name": "entmax", "alpha": 0.5}}, "align.*alpha"),
        ({"score": {"name": "low_rank", "rank": 0}}, "score.*rank must be"),
        ({"score": {"name": "additive", "rank": 3}}, "unknown key"),
    ],
)
def test_invalid_terms_raise_when_the_config_is_read(name, terms, message):
    with pytest.raises(InputError, match=message):
        make_model(name, **terms)


@pytest.fixture
def own_positions() -> Iterator[None]:
    @register("position", "test_encoding")
    class Ramp(PositionalEncoding):
        """The position times another number for each feature."""

        def forward(self, length: int, offset: int = 0) -> Tensor:
            return self.at(torch.arange(offset, offset + length)[None])[0]

        def at(self, positions: Tensor) -> Tensor:
            return positions[..., None] * torch.linspace(0, 1, 16, dtype=torch.float64)

    @register("position", "test_position")
    class Damped(Position):
        """Multiplies queries and keys by 1 / (1 + position)."""

        rotates_qk = True

        def apply_to_qk(self, x: Tensor, positions: Tensor) -> Tensor:
            return x / (1 + positions.to(x.dtype))[:, None, :, None]

    yield
    for name in ("test_encoding", "test_position"):
        del _classes["position"][name]


@MODELS
@pytest.mark.usefixtures("own_positions")
@pytest.mark.parametrize("position", ["test_encoding", "test_position"])
def test_a_registered_position_works_in_every_model(name, position):
    if name == "linformer" and position == "test_position":
        with pytest.raises(InputError, match="projected keys have no position"):
            make_model(name, position=position)
        return
    model, without = make_model(name, position=position), make_model(name, position="none")
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in without.parameters())
    assert not output(model).allclose(output(without), atol=1e-3)


@MODELS
def test_a_config_with_options_of_terms_survives_a_round_trip(name):
    model = make_model(name, score={"name": "low_rank", "rank": 3}, align={"name": "entmax", "alpha": 1.3})
    assert {layer.score.query_weight.shape[-1] for layer in layers(model)} == {3}
    data = model.config.to_dict()
    assert data["score"] == {"name": "low_rank", "rank": 3}
    assert build(type(model.config), data, "test") == model.config


@MODELS
def test_every_key_of_the_config_is_described(name):
    cls = lookup("model", name).config_class
    assert describe_fields(cls).keys() >= cls.model_fields.keys()

"""Blocks without normalization, residual connection, feed-forward network or causal mask, against plain formulas."""

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import InputError, Unsupported
from qkv.generation.decoder_stack import decoder_stack
from qkv.hub.conversion import family_for
from qkv.hub.released import write_released
from qkv.models.bert import Bert
from qkv.nn.residual_norm import ResidualNorm
from tests.models.contract import CASES

MODELS = ("bert", "gpt2", "transformer", "vit")
CHANGES = {
    "norm": {"norm": "none"},
    "residual": {"residual": False},
    "ffn": {"ffn": "none"},
    "position": {"position": "none"},
    "one head": {"heads": 1},
}


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("residual", [True, False])
def test_a_sub_layer_equals_its_formula(norm, residual):
    torch.manual_seed(0)
    x, layer = torch.randn(2, 3, 4), ResidualNorm(4, norm=norm, residual=residual)
    f = torch.nn.Linear(4, 4)
    inputs = F.layer_norm(x, (4,)) if norm == "pre" else x
    expected = f(inputs) + (x if residual else 0)
    expected = F.layer_norm(expected, (4,)) if norm == "post" else expected
    torch.testing.assert_close(layer.after(x, f(layer.before(x))), expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_models_train_without_a_part(name, change):
    case = CASES[name]
    model = case.build(**change)
    names = [parameter for parameter, _ in model.named_parameters()]
    if change == CHANGES["norm"]:
        assert not any("norm" in parameter for parameter in names if not parameter.startswith("mlm_head"))
    if change == CHANGES["ffn"]:
        assert not any("ffn" in parameter for parameter in names)
    if change == CHANGES["position"]:
        assert not any("positions" in parameter for parameter in names)
    batch = case.batch()
    before = case.loss(case.logits(model, batch), batch.targets).item()
    assert case.train(model, 4) < before
    assert all(parameter.grad is not None for parameter in model.parameters())


@torch.no_grad()
def test_bert_without_norm_and_ffn_is_a_sum_of_attention_outputs():
    case = CASES["bert"]
    model, (tokens,) = case.build(norm="none", ffn="none").eval(), case.batch().inputs
    assert isinstance(model, Bert)
    x = model.embed.tokens(tokens) + model.embed.segments.weight[0] + model.embed.positions.weight[: tokens.shape[1]]
    for block in model.encoder:
        x = x + block.attention(x)[0]
    torch.testing.assert_close(model(tokens), x)


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
@torch.no_grad()
def test_without_causal_mask_logits_depend_on_later_tokens(name):
    case, changed = CASES[name], CASES[name].batch()
    changed.inputs[-1][:, -1] = (changed.inputs[-1][:, -1] + 1) % 5
    for causal in (True, False):
        model = case.build(causal=causal).eval()
        before, after = case.logits(model, case.batch()), case.logits(model, changed)
        assert before[:, :-1].allclose(after[:, :-1]) == causal


@pytest.mark.parametrize("change", [{"norm": "none"}, {"residual": False}, {"ffn": "none"}, {"causal": False}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_they_have_no_fast_decoder_and_no_counterpart_in_transformers(name, change, tmp_path):
    case = CASES[name]
    if "causal" in change and name in ("bert", "vit"):
        with pytest.raises(InputError, match="causal"):
            case.build(**change)
        return
    model = case.build(**change).eval()
    with pytest.raises(Unsupported):
        decoder_stack(model)
    if name != "transformer":  # Marian and Pegasus have other positions
        with pytest.raises(InputError, match=next(iter(change))):
            write_released(model, family_for(type(model), model.config), tmp_path)

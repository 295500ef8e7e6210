"""Whole models with relative positions (Shaw et al. 2018): their gradients, that they learn, and that they are kept."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.interop import load, save_model
from qkv.models import bert, transformer
from qkv.models.bert import Bert
from qkv.models.transformer import Transformer

SIZES = {"dim": 16, "heads": 2, "feedforward": 16, "max_length": 8, "position": "relative", "dropout": 0.0}
GOLDEN = {"bert": 1.17365, "transformer": 1.23342}  # losses after 20 steps
SOURCE, TARGET = torch.randint(4, 10, (2, 8, 6), generator=torch.Generator().manual_seed(2))


def made(name: str, **changes: int) -> Bert | Transformer:
    torch.manual_seed(0)
    sizes = {**SIZES, "attention_dropout": 0.0, **changes}
    if name == "bert":
        return Bert(bert.Config(10, "tagger", 10, layers=2, pooler=False, **sizes))
    return Transformer(transformer.Config(10, 10, encoder_layers=1, decoder_layers=1, **sizes))


def said(model: Bert | Transformer, rows: int = 8) -> Tensor:
    """The logits of the target: of a tag for each token, or of the next token."""
    if isinstance(model, Bert):
        return model.say(SOURCE[:rows], torch.full((rows,), 6))
    return model(SOURCE[:rows], F.pad(TARGET[:rows, :-1], (1, 0), value=2))


def trained(model: Bert | Transformer, steps: int) -> float:
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(said(model).flatten(0, 1), TARGET.flatten())
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", GOLDEN)
def test_gradients_are_those_of_finite_differences(name):
    model = made(name, dim=4, feedforward=3).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # away from 0 and 1, where a mistake could hide
    weights = dict(model.named_parameters())
    assert sum("position." in part for part in weights) == 4  # for keys and values, of two layers
    assert torch.autograd.gradcheck(lambda *_: said(model, 2), tuple(weights.values()), fast_mode=True)


@pytest.mark.parametrize("name", GOLDEN)
def test_after_twenty_steps_the_loss_is_what_it_was_when_this_was_written(name):
    assert trained(made(name), 20) == pytest.approx(GOLDEN[name], rel=2e-3)


@pytest.mark.parametrize("name", GOLDEN)
def test_eight_texts_are_learned_by_heart(name):
    model = made(name)
    assert trained(model, 120) < 0.05
    assert said(model.eval()).argmax(dim=-1).equal(TARGET)


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_saved_is_loaded_bit_for_bit(name, tmp_path: Path):
    model = made(name).eval()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert said(again).equal(said(model))

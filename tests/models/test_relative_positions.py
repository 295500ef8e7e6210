"""Models with relative positions (Shaw et al. 2018): gradients, learning and saving."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.hub import load, save_model
from qkv.models import bert, transformer
from qkv.models.bert import Bert
from qkv.models.transformer import Transformer

SIZES = {"dim": 16, "heads": 2, "ffn_dim": 16, "max_length": 8, "position": "relative", "dropout": 0.0}
GOLDEN = {"bert": 1.17365, "transformer": 1.23342}  # losses after 20 steps
SOURCE, TARGET = torch.randint(4, 10, (2, 8, 6), generator=torch.Generator().manual_seed(2))


def make_model(name: str, **changes: int) -> Bert | Transformer:
    torch.manual_seed(0)
    sizes = {**SIZES, "attention_dropout": 0.0, **changes}
    if name == "bert":
        return Bert(bert.BertConfig(vocab_size=10, head="tagger", labels=10, layers=2, pooler=False, **sizes))
    return Transformer(
        transformer.TransformerConfig(
            source_vocab_size=10, target_vocab_size=10, encoder_layers=1, decoder_layers=1, **sizes
        )
    )


def logits(model: Bert | Transformer, rows: int = 8) -> Tensor:
    """Logits of the target: tags, or next tokens."""
    if isinstance(model, Bert):
        return model.predict(SOURCE[:rows], torch.full((rows,), 6))
    return model(SOURCE[:rows], F.pad(TARGET[:rows, :-1], (1, 0), value=2))


def trained(model: Bert | Transformer, steps: int) -> float:
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(model).flatten(0, 1), TARGET.flatten())
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", GOLDEN)
def test_gradients_match_finite_differences(name):
    model = make_model(name, dim=4, ffn_dim=3).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # away from 0 and 1, which could hide a mistake
    weights = dict(model.named_parameters())
    assert sum("position." in part for part in weights) == 4  # for keys and values, of two layers
    assert torch.autograd.gradcheck(lambda *_: logits(model, 2), tuple(weights.values()), fast_mode=True)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_loss_after_20_steps_is_unchanged(name):
    assert trained(make_model(name), 20) == pytest.approx(GOLDEN[name], rel=2e-3)


@pytest.mark.parametrize("name", GOLDEN)
def test_it_overfits_eight_texts(name):
    model = make_model(name)
    assert trained(model, 120) < 0.05
    assert logits(model.eval()).argmax(dim=-1).equal(TARGET)


@pytest.mark.parametrize("name", GOLDEN)
def test_it_is_saved_and_loaded_bit_for_bit(name, tmp_path: Path):
    model = make_model(name).eval()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert logits(again).equal(logits(model))

"""Linformer: its equations, its shared matrices, padding that leaves no trace, and texts that are long."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.data.pair import Pair
from qkv.data.registry import LoadedData
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.interop import load, save_model
from qkv.models.linformer import SHARING, Config, Linformer
from qkv.nn.low_rank import Mixture
from qkv.tasks.classification import ClassificationTask
from qkv.training.recipe import TrainConfig

SIZES = {"vocabulary_size": 13, "dim": 12, "heads": 3, "layers": 2, "feedforward": 20, "max_length": 16, "rank": 5}


def made(dtype: torch.dtype = torch.float64, **changes: Any) -> Linformer:
    torch.manual_seed(3)
    model = Linformer(Config(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms begin at 0 and 1, where a mistake could hide
            parameter.normal_(std=0.4)
    return model


def some_tokens(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(5))


def by_the_equations(model: Linformer, tokens: Tensor, lengths: Tensor) -> Tensor:
    """h_L by the equations of the docstrings, one token, head and mixture at a time."""
    c = model.config

    def norm(h: Tensor, by: torch.nn.LayerNorm) -> Tensor:
        return (h - h.mean()) / (h.var(unbiased=False) + c.eps).sqrt() * by.weight + by.bias

    rows = []
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        x = [norm(model.embed.tokens.weight[token] + model.embed.positions.weight[place], model.norm)
             for place, token in enumerate(row)]  # fmt: skip
        for block in model.encoder:
            layer = block.attention
            parts = [(layer.project.weight @ h + layer.project.bias).view(3, c.heads, -1) for h in x]
            read: list[list[Tensor]] = [[] for _ in x]
            for head in range(c.heads):
                of_head = head if c.sharing == "none" else 0
                e, f = layer.mix_keys.weight[of_head], layer.mix_values.weight[of_head]
                keys = [sum(e[k, i] * parts[i][1, head] for i in range(length)) for k in range(c.rank)]
                values = [sum(f[k, i] * parts[i][2, head] for i in range(length)) for k in range(c.rank)]
                for t in range(len(x)):
                    scores = torch.stack([parts[t][0, head] @ key / math.sqrt(c.dim // c.heads) for key in keys])
                    weights = scores.exp() / scores.exp().sum()
                    read[t].append(sum(weights[k] * values[k] for k in range(c.rank)))
            for t, h in enumerate(x):
                h = norm(h + layer.output(torch.cat(read[t])), block.attention_norm)
                wide = block.feedforward.widen(h)
                wide = wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
                x[t] = norm(h + block.feedforward.narrow(wide), block.feedforward_norm)
        rows.append(torch.stack(x))
    return torch.stack(rows)


@pytest.mark.parametrize("sharing", SHARING)
def test_the_model_is_its_equations_and_so_are_its_gradients(sharing):
    model, tokens, lengths = made(sharing=sharing), some_tokens(2, 5), torch.tensor([5, 3])
    found, expected = model(tokens, lengths=lengths), by_the_equations(model, tokens, lengths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    direction = torch.randn(found.shape, dtype=torch.float64)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((found * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("head", ["classifier", "tagger"])
def test_gradients_of_every_head_are_those_of_finite_differences(head):
    model = made(head=head, labels=3, layers=1, dim=6, feedforward=5)

    def value() -> Tensor:
        logits = model.say(some_tokens(2, 4), torch.tensor([4, 2]))
        return (logits * torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()

    value().backward()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        way = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * way
            above = value()
            parameter -= 2e-5 * way
            below = value()
            parameter += 1e-5 * way
        expected = float(above - below) / 2e-5
        assert float((parameter.grad * way).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    ("sharing", "matrices", "heads"), [("none", 4, 3), ("headwise", 4, 1), ("key_value", 2, 1), ("layerwise", 1, 1)]
)
def test_so_many_matrices_are_shared_as_the_recipe_says_and_are_saved_and_loaded_bit_by_bit(
    sharing, matrices, heads, tmp_path: Path
):
    model = made(torch.float32, sharing=sharing, head="classifier")
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
    assert [mixture.weight.shape for mixture in mixtures] == [(heads, 5, 16)] * matrices
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert len([module for module in again.modules() if isinstance(module, Mixture)]) == matrices
    tokens, lengths = some_tokens(), torch.tensor([9, 4, 1])
    assert again.say(tokens, lengths).equal(model.say(tokens, lengths))


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_longer_padding_changes_nothing_and_rows_are_read_as_if_they_were_alone(position):
    model, tokens, lengths = made(position=position), some_tokens(), torch.tensor([9, 4, 1])
    together = model(tokens, lengths=lengths)
    longer = model(torch.cat((tokens, some_tokens(3, 7)), dim=1), lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=0, atol=1e-11)
        torch.testing.assert_close(longer[row, :length], alone, rtol=0, atol=1e-11)


def test_a_row_without_any_token_is_finite_and_changes_no_other():
    model, tokens = made(), some_tokens()
    found = model(tokens, lengths=torch.tensor([9, 0, 4]))
    assert found.isfinite().all()
    torch.testing.assert_close(found[2, :4], model(tokens[2:, :4])[0], rtol=0, atol=1e-11)


def test_what_is_watched_are_weights_over_mixtures():
    model = made()
    with qkv.watch(model, layers=[1], heads=[2]) as seen:
        model(some_tokens(), lengths=torch.tensor([9, 4, 1]))
    weights = seen["encoder.1"].weights
    assert weights.shape == (3, 1, 9, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 9, dtype=torch.float64))


def test_a_text_of_65536_tokens_is_read_in_little_memory():
    model = Linformer(Config(13, "tagger", dim=8, heads=2, layers=1, feedforward=8, max_length=2**16, rank=4)).eval()
    with torch.inference_mode():  # one matrix of all pairs of tokens would take 16 GiB
        assert model.say(some_tokens(1, 2**16), torch.tensor([2**16])).shape == (1, 2**16, 2)


def test_under_autocast_it_stays_close_and_every_weight_learns():
    model, tokens, lengths = made(torch.float32, head="classifier"), some_tokens(length=16), torch.tensor([16, 5, 2])
    exact = model.say(tokens, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.say(tokens, lengths)
    assert (logits.float() - exact).abs().mean() < 0.05 * exact.abs().mean()
    logits.float().square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.compiled
def test_training_all_of_it_is_one_graph():
    model, tokens = made(torch.float32, head="classifier"), some_tokens()

    def loss(tokens: Tensor, lengths: Tensor) -> Tensor:
        return model.say(tokens, lengths).square().mean()

    expected = loss(tokens, torch.tensor([9, 4, 1]))
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(tokens, torch.tensor([9, 4, 1]))
    torch.testing.assert_close(found, expected)
    found.backward()


GOOD, BAD = "a fine film with a warm heart .", "a dull film with a cold heart ."
TEXTS = [Pair(" ".join([text] * times), label) for times in (1, 2, 3, 4) for text, label in ((GOOD, "+"), (BAD, "-"))]


def trained(steps: int, **changes: Any) -> tuple[float, float]:
    """The loss and the accuracy after some steps on eight texts of made words, in batches as a GPU would have them."""
    vocabulary = Vocabulary.train([pair.source for pair in TEXTS], "word")
    torch.manual_seed(0)
    sizes = ClassificationTask.sizes(LoadedData({"train": TEXTS}), vocabulary)
    config = Config(**{**sizes, "dim": 16, "heads": 2, "layers": 2, "max_length": 48, "rank": 8, **changes})
    model = Linformer(config).eval()  # without dropout
    task = ClassificationTask.prepare(
        LoadedData({"train": TEXTS, "valid": TEXTS}), vocabulary, config, TrainConfig(batch_tokens=400), 0
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = task.loss(model, task.batch(range(8), padded_to_shape=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = task.validate(model)
    return scores["loss"], scores["accuracy"]


def test_the_loss_after_20_steps_is_what_it_was():
    assert trained(20)[0] == pytest.approx(0.30827, rel=1e-3)


@pytest.mark.parametrize("sharing", ["none", "layerwise"])
def test_it_learns_eight_texts_by_heart(sharing):
    loss, accuracy = trained(60, sharing=sharing)
    assert accuracy == 1.0
    assert loss < 0.05


def test_without_a_head_and_with_segments_or_too_many_tokens_it_says_so():
    model = made()
    with pytest.raises(InputError, match="has no head, so it has no logits: build it with classifier or tagger"):
        model.logits(model(some_tokens()))
    with pytest.raises(InputError, match="reads one text, which has no segments"):
        model(some_tokens(), some_tokens())
    with pytest.raises(InputError, match="position 16"):
        model(some_tokens(length=17))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 0}, "rank must lie between"),
        ({"rank": 17}, r"17 mixtures \(rank\) of 16 places save nothing"),
        ({"heads": 5}, "dim 12 must be a multiple of heads 5"),
        ({"sharing": "layers"}, r"sharing 'layers' is not known \(did you mean layerwise\?\)"),
        ({"position": "relative"}, "position 'relative' is not known"),
        ({"head": "masked_lm"}, "head 'masked_lm' is not known"),
        ({"max_length": 2**24, "rank": 2**20, "dim": 3}, "3 matrices of 1048576 by 16777216 numbers are too large"),
        ({"label_names": ("a",)}, "there are 1 label_names for 2 labels"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Config(**{**SIZES, **changes})

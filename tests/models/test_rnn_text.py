"""Recurrent text encoders: equations, both heads, one and two directions, and padding."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.attention import Cosine, Sparsemax
from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.models.rnn_text import RNNText, RNNTextConfig

VOCABULARY = 9
HEADS = ["tagger", "classifier"]
GOLDEN = {"mean": 0.60342, "last": 0.58075, "attention": 0.64858, "tagger": 0.79091}  # losses after 20 steps
TOKENS = torch.tensor([[4, 5, 6, 7, 8], [1, 2, 3, 0, 0], [5, 0, 0, 0, 0]])
LENGTHS = torch.tensor([5, 3, 1])
CELLS = ["rnn", "gru", "lstm"]
POOLINGS = ["mean", "last", "attention"]
KINDS = {**{pooling: {"head": "classifier", "pooling": pooling} for pooling in POOLINGS}, "tagger": {"head": "tagger"}}


def make_model(dtype: torch.dtype = torch.float64, **changes: Any) -> RNNText:
    torch.manual_seed(3)
    sizes = {"embedding_dim": 3, "hidden_dim": 2, "layers": 2, "dropout": 0.0, "labels": 3, "head": "classifier"}
    model = RNNText(RNNTextConfig(vocab_size=VOCABULARY, **{**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    return model.to(dtype).eval()


def one_direction(cell: str, weights: Any, x: list[Tensor]) -> list[Tensor]:
    """h of one direction of one layer, step by step."""
    w, u, b, d = weights.rnn.parameters()
    h = c = torch.zeros(u.shape[1], dtype=w.dtype)
    actual = []
    for x_t in x:
        inputs, recurrent = w @ x_t + b, u @ h + d
        if cell == "rnn":
            h = torch.tanh(inputs + recurrent)
        elif cell == "gru":
            (r, z, n), (r_h, z_h, n_h) = inputs.chunk(3), recurrent.chunk(3)
            z = torch.sigmoid(z + z_h)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + r_h) * n_h) + z * h
        else:
            i, f, g, o = (inputs + recurrent).chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        actual.append(h)
    return actual


def reference_forward(model: RNNText, tokens: list[int]) -> Tensor:
    """h of one text."""
    x = [model.embed.weight[token] for token in tokens]
    for layer in model.layers:
        forward = one_direction(model.config.cell, layer.forward_rnn, x)
        if layer.backward_rnn is None:
            x = forward
        else:
            backward = one_direction(model.config.cell, layer.backward_rnn, x[::-1])[::-1]
            x = [torch.cat(both) for both in zip(forward, backward, strict=True)]
    return torch.stack(x)


def pooled(model: RNNText, h: Tensor) -> Tensor:
    match model.config.pooling:
        case "mean":
            return h.mean(dim=0)
        case "last":
            width = model.config.hidden_dim
            return torch.cat((h[-1, :width], h[0, width:]))
        case _:
            weights = torch.softmax(torch.tanh(h @ model.pool.key.weight.T + model.pool.key.bias) @ model.pool.query, 0)
            return weights @ h


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_states_and_tags_match_the_equations(cell, bidirectional):
    model = make_model(cell=cell, bidirectional=bidirectional, head="tagger")
    assert model.width == (4 if bidirectional else 2)
    hidden, tags = model(TOKENS, lengths=LENGTHS), model.predict(TOKENS, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = reference_forward(model, TOKENS[row, :length].tolist())
        torch.testing.assert_close(hidden[row, :length], expected, rtol=0, atol=1e-11)
        torch.testing.assert_close(tags[row, :length], model.label(expected), rtol=0, atol=1e-11)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_classifier_matches_its_pooling_equations(pooling, bidirectional):
    model = make_model(pooling=pooling, bidirectional=bidirectional)
    actual = model.predict(TOKENS, LENGTHS)
    expected = [
        model.label(pooled(model, reference_forward(model, TOKENS[row, :length].tolist())))
        for row, length in enumerate(LENGTHS.tolist())
    ]
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-11)
    torch.testing.assert_close(model.logits(model(TOKENS[:1])), actual[:1])  # without padding
    parameters, direction = list(model.parameters()), torch.randn(3, 3, dtype=torch.float64)
    for grad, expected_grad in zip(
        torch.autograd.grad((actual * direction).sum(), parameters),
        torch.autograd.grad((torch.stack(expected) * direction).sum(), parameters, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(
            grad, torch.zeros_like(grad) if expected_grad is None else expected_grad, rtol=1e-8, atol=1e-9
        )


def test_the_config_sets_the_terms_and_the_backend_of_attention_pooling():
    attend = make_model(score="cosine", align="sparsemax", backend="reference").pool.attend
    assert (type(attend.score), type(attend.align), attend.backend) == (Cosine, Sparsemax, "reference")


def test_its_attention_can_be_watched():
    with qkv.watch(model := make_model()) as seen:
        model.predict(TOKENS, LENGTHS)
    weights = seen["pool"].weights[:, 0, 0]
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, dtype=torch.float64))
    assert ((weights > 0) == (torch.arange(5) < LENGTHS[:, None])).all()


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_match_finite_differences(cell):
    model = make_model(cell=cell, embedding_dim=2, hidden_dim=1, layers=1, head=None)
    names, weights = zip(*model.named_parameters(), strict=True)

    def hidden(*weights: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights, strict=True)), (TOKENS[:2, :3],))

    assert torch.autograd.gradcheck(hidden, weights, fast_mode=True)


@pytest.mark.parametrize("head", HEADS)
def test_gradients_through_a_head_match_finite_differences(head):
    model = make_model(embedding_dim=2, hidden_dim=1, head=head)
    assert torch.autograd.gradcheck(
        lambda *_: model.predict(TOKENS, LENGTHS), tuple(model.parameters()), fast_mode=True
    )


def trained(model: RNNText, steps: int, tokens: Tensor, targets: Tensor, rate: float) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model.predict(tokens, torch.full(tokens.shape[:1], tokens.shape[1]))
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("kind", GOLDEN)
def test_the_loss_after_20_steps_is_unchanged(kind):
    torch.manual_seed(0)
    model = RNNText(
        RNNTextConfig(vocab_size=VOCABULARY, **KINDS[kind], labels=3, embedding_dim=8, hidden_dim=6, word_dropout=0.1)
    )
    tokens = torch.randint(1, VOCABULARY, (16, 6), generator=torch.Generator().manual_seed(1))
    targets = tokens.cummax(dim=-1).values % 3  # the label of a text is that of its last token
    targets = targets if kind == "tagger" else targets[:, -1]
    assert trained(model, 20, tokens, targets, 1e-2) == pytest.approx(GOLDEN[kind], rel=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_it_overfits_eight_texts(kind):
    torch.manual_seed(0)
    model = RNNText(RNNTextConfig(vocab_size=VOCABULARY, **KINDS[kind], embedding_dim=8, hidden_dim=8, dropout=0.0))
    tokens = torch.randint(1, VOCABULARY, (8, 5), generator=torch.Generator().manual_seed(2))
    targets = torch.arange(40).view(8, 5) % 2 if kind == "tagger" else torch.arange(8) % 2
    trained(model, 60, tokens, targets, 2e-2)
    assert model.eval().predict(tokens, torch.full((8,), 5)).argmax(dim=-1).equal(targets)


@pytest.mark.parametrize(
    "changes",
    [{"head": "tagger"}, {}, {"score": {"name": "low_rank", "rank": 2}, "align": "entmax", "backend": "reference"}],
)
def test_it_is_saved_and_loaded_bit_for_bit(changes, tmp_path):
    model = make_model(torch.float32, **changes)
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again.predict(TOKENS, LENGTHS).equal(model.predict(TOKENS, LENGTHS))


def test_it_runs_and_learns_in_bfloat16():
    model = make_model(torch.float32).train()
    expected = model.predict(TOKENS, LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model.predict(TOKENS, LENGTHS)
    assert (actual.float() - expected).abs().max() < 0.05
    actual.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"head": "taggr"}, r"head = 'taggr' \(did you mean tagger\?\)"),
        ({"bidirectional": 2}, "bidirectional must be"),
        ({"layers": 0}, "layers must be"),
        ({"hidden_dim": 0}, "hidden_dim must be"),
        ({"word_dropout": -0.1}, "word_dropout must be"),
        ({"labels": 2, "label_names": ("one",)}, "there are 1 label_names for 2 labels"),
        ({"score": "dott"}, r"unknown score 'dott' \(did you mean dot\?\)"),
        ({"score": {"name": "low_rank", "rank": 0}}, "rank must be"),
        ({"align": {"name": "hard", "estimator": "reinforce"}}, "reinforce"),
        ({"backend": "cuda"}, "backend = 'cuda'"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        RNNTextConfig(**{"vocab_size": VOCABULARY, **wrong})


def test_segments_or_a_missing_head_raise():
    with pytest.raises(InputError, match="segments"):
        make_model()(TOKENS, TOKENS)
    with pytest.raises(InputError, match="no head"):
        make_model(head=None).predict(TOKENS, LENGTHS)

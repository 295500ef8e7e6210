"""Recurrent language models: the equations, read in one piece, in parts, or token by token."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.models.rnn_lm import RNNLM, Config, SequenceDropout
from qkv.nn.state import select

CELLS = ["rnn", "gru", "lstm"]
SIZES = {"vocabulary_size": 11, "layers": 2, "embedding": 5, "hidden": 7}


def made(cell: str, dtype: torch.dtype = torch.float64, **changes: Any) -> RNNLM:
    torch.manual_seed(3)
    model = RNNLM(Config(**{**SIZES, "cell": cell, "dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.7, 0.7)
    return model


def some_tokens(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(SIZES["vocabulary_size"], (batch, length), generator=torch.Generator().manual_seed(5))


def by_the_equations(model: RNNLM, tokens: Tensor) -> Tensor:
    """The equations of the module's docstring, one step and one layer at a time."""
    state = model.start(len(tokens))
    hidden = list(state.hidden.unbind(1))
    cell = list(state.cell.unbind(1)) if state.cell is not None else []
    logits = []
    for token in tokens.unbind(1):
        x = model.embed.weight[token]
        for number, layer in enumerate(model.layers):
            w, u, b, b_hidden = layer.weights.parameters()
            read, kept = x @ w.T + b, hidden[number] @ u.T + b_hidden
            match model.config.cell:
                case "rnn":
                    x = torch.tanh(read + kept)
                case "gru":
                    r, z = torch.sigmoid(read + kept).chunk(3, dim=1)[:2]
                    new = torch.tanh(read.chunk(3, dim=1)[2] + r * kept.chunk(3, dim=1)[2])
                    x = (1 - z) * new + z * hidden[number]
                case "lstm":
                    i, f, g, o = (read + kept).chunk(4, dim=1)
                    cell[number] = f.sigmoid() * cell[number] + i.sigmoid() * g.tanh()
                    x = o.sigmoid() * cell[number].tanh()
            hidden[number] = x
        logits.append(x @ model.readout.weight.T + model.readout.bias)
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_the_model_is_its_equations_and_so_are_its_gradients(cell, learned):
    model, tokens = made(cell, learned_start=learned), some_tokens()
    direction = torch.randn(3, 9, SIZES["vocabulary_size"], dtype=torch.float64)
    found, expected = model(tokens), by_the_equations(model, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((found * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("cell", "module"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_a_stack_of_layers_is_the_librarys_stack(cell, module):
    model, tokens = made(cell, layers=3), some_tokens()
    stack = module(SIZES["embedding"], SIZES["hidden"], num_layers=3, batch_first=True).double()
    with torch.no_grad():
        for mine, its in zip(
            (p for layer in model.layers for p in layer.parameters()), stack.parameters(), strict=True
        ):
            its.copy_(mine)
    output, last = stack(model.embed(tokens))
    logits, state = model.read(tokens, model.start(3))
    torch.testing.assert_close(logits, model.readout(output), rtol=0, atol=1e-12)
    hidden = last[0] if cell == "lstm" else last
    torch.testing.assert_close(state.hidden, hidden.transpose(0, 1), rtol=0, atol=1e-12)
    assert (state.cell is not None) == (cell == "lstm")


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_text_can_be_read_whole_in_parts_or_token_by_token(cell, learned, dtype, tolerance):
    model, tokens = made(cell, dtype, learned_start=learned), some_tokens()
    whole = model(tokens)
    state, parts = model.start(3), []
    for part in tokens.split([4, 1, 3, 1], dim=1):
        logits, state = model.read(part, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=tolerance)
    state, steps = model.start(3), []
    for token in tokens.unbind(1):
        logits, state = model.step(token, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cell", CELLS)
def test_a_text_is_read_alike_alone_and_in_a_batch(cell):
    model, tokens = made(cell, torch.float32, learned_start=True), some_tokens(batch=4)
    together, state = model.read(tokens, model.start(4))
    for row in range(4):
        alone, own = model.read(tokens[row : row + 1], model.start(1))
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-5)
        torch.testing.assert_close(own.hidden, select(state, torch.tensor([row])).hidden, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_rows_of_a_state_go_on_as_if_they_had_always_been_in_that_order(cell):
    model, tokens = made(cell), some_tokens()
    order = torch.tensor([2, 0, 0])
    _, state = model.read(tokens[:, :4], model.start(3))
    logits, _ = model.read(tokens[order, 4:], select(state, order))
    torch.testing.assert_close(logits, model(tokens[order])[:, 4:], rtol=0, atol=1e-12)


def test_sequence_dropout_leaves_out_the_same_features_at_every_step():
    torch.manual_seed(0)
    mask = SequenceDropout(0.25).train()(torch.ones(40, 6, 50))
    assert mask.equal(mask[:, :1].expand_as(mask))
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert not mask[0].equal(mask[1])  # each sequence has its own
    assert (mask == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert SequenceDropout(0.25).eval()(mask).equal(mask)


@pytest.mark.parametrize("cell", CELLS)
def test_what_enters_and_leaves_every_layer_is_dropped_alike_at_every_step(cell):
    model = made(cell, dropout=0.5, hidden=40, embedding=40).train()
    entered, left = [], []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
        layer.register_forward_hook(lambda _, __, out: left.append(out[0]))
    model.readout.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    tokens = some_tokens()
    model(tokens)
    for before, after in zip((model.embed(tokens), *left), entered, strict=True):
        kept = after / before  # 0 or 2
        torch.testing.assert_close(kept, kept[:, :1].expand_as(kept))
        assert {round(value, 6) for value in kept.flatten().tolist()} == {0.0, 2.0}
    assert len(entered) == 3


@pytest.mark.parametrize("cell", CELLS)
def test_weight_dropout_equals_a_model_whose_recurrent_matrices_lack_those_weights(cell):
    model, tokens = made(cell, weight_dropout=0.4).train(), some_tokens()
    torch.manual_seed(17)
    found = model(tokens)
    found.sum().backward()
    assert not found.equal(made(cell)(tokens))
    torch.manual_seed(17)
    thinned = made(cell, learned_start=False)
    torch.manual_seed(17)
    with torch.no_grad():
        for layer in thinned.layers:
            layer.weights.weight_hh_l0.copy_(F.dropout(layer.weights.weight_hh_l0, 0.4))
    torch.testing.assert_close(found, thinned(tokens), rtol=0, atol=1e-12)
    for mine, its in zip(model.layers, thinned.layers, strict=True):  # a weight that was not there learns nothing
        gone = its.weights.weight_hh_l0 == 0
        assert 0 < gone.sum() < gone.numel()
        assert mine.weights.weight_hh_l0.grad[gone].abs().max() == 0
        assert (mine.weights.weight_ih_l0.grad != 0).all(dim=0).any()


@pytest.mark.parametrize("cell", CELLS)
def test_nothing_is_dropped_outside_of_training(cell):
    tokens = some_tokens()
    assert made(cell, dropout=0.5, weight_dropout=0.5)(tokens).equal(made(cell)(tokens))


def test_tied_embeddings_are_one_matrix():
    model = made("lstm", embedding=7, tie=True)
    assert model.readout.weight is model.embed.weight
    assert [name for name, _ in model.named_parameters() if name.startswith(("embed", "readout.w"))] == ["embed.weight"]


def test_a_learned_start_is_a_parameter_and_a_zero_one_is_not():
    zero, learned = made("lstm"), made("lstm", learned_start=True)
    assert zero.start(2).hidden.abs().max() == 0
    assert set(dict(learned.named_parameters())) - set(dict(zero.named_parameters())) == {"first"}
    assert learned.start(2).cell[0].equal(learned.start(2).cell[1])
    assert set(zero.state_dict()) == set(dict(zero.named_parameters()))  # what is saved


def test_an_lstm_begins_by_remembering():
    layer = RNNLM(Config(**SIZES)).layers[0]
    i, f, *_ = layer.weights.bias_ih_l0.chunk(4)
    assert f.tolist() == [1.0] * SIZES["hidden"]
    assert i.abs().max() < 1


def test_under_autocast_the_state_keeps_its_precision():
    model = made("lstm", torch.float32, dropout=0.2, weight_dropout=0.2).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = model.read(some_tokens(), model.start(3))
    assert state.hidden.dtype == state.cell.dtype == torch.float32
    logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_a_small_model_learns_a_pattern(cell):
    torch.manual_seed(0)
    model = RNNLM(Config(3, cell, layers=1, embedding=8, hidden=16, dropout=0.0)).train()
    tokens = torch.tensor([[0, 1, 1, 2] * 4])  # what follows a 1 depends on what came before it
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 0}, "hidden must lie between"),
        ({"layers": 2000}, "layers must be 1,024 at most"),
        ({"vocabulary_size": 2**25}, "vocabulary_size must lie between"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"weight_dropout": -0.1}, r"weight_dropout must lie in \[0, 1\)"),
        ({"weight_dropout": float("nan")}, r"weight_dropout must lie in \[0, 1\)"),
        ({"tie": True}, "tie needs embedding and hidden to be alike, not 5 and 7"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Config(**{**SIZES, **changes})

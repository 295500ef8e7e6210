"""Recurrent language models: equations, chunked and stepwise decoding, and dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.models.rnn_lm import RNNLM, RNNLMConfig, SequenceDropout
from qkv.nn.interfaces import select

CELLS = ["rnn", "gru", "lstm"]
SIZES = {"vocab_size": 11, "layers": 2, "embedding_dim": 5, "hidden_dim": 7}


def make_model(cell: str, dtype: torch.dtype = torch.float64, **changes: Any) -> RNNLM:
    torch.manual_seed(3)
    model = RNNLM(RNNLMConfig(**{**SIZES, "cell": cell, "dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.7, 0.7)
    return model


def random_tokens(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(5))


def reference_forward(model: RNNLM, tokens: Tensor) -> Tensor:
    """The equations of the module's docstring, one step and one layer at a time."""
    state = model.init_state(len(tokens))
    hidden = list(state.hidden.unbind(1))
    cell = list(state.cell.unbind(1)) if state.cell is not None else []
    logits = []
    for token in tokens.unbind(1):
        x = model.embed.weight[token]
        for number, layer in enumerate(model.layers):
            w, u, b, b_hidden = layer.weights.parameters()
            from_input, from_state = x @ w.T + b, hidden[number] @ u.T + b_hidden
            match model.config.cell:
                case "rnn":
                    x = torch.tanh(from_input + from_state)
                case "gru":
                    r, z = torch.sigmoid(from_input + from_state).chunk(3, dim=1)[:2]
                    new = torch.tanh(from_input.chunk(3, dim=1)[2] + r * from_state.chunk(3, dim=1)[2])
                    x = (1 - z) * new + z * hidden[number]
                case "lstm":
                    i, f, g, o = (from_input + from_state).chunk(4, dim=1)
                    cell[number] = f.sigmoid() * cell[number] + i.sigmoid() * g.tanh()
                    x = o.sigmoid() * cell[number].tanh()
            hidden[number] = x
        logits.append(x @ model.readout.weight.T + model.readout.bias)
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_outputs_and_gradients_match_the_equations(cell, learned):
    model, tokens = make_model(cell, learned_initial_state=learned), random_tokens()
    direction = torch.randn(3, 9, SIZES["vocab_size"], dtype=torch.float64)
    actual, expected = model(tokens), reference_forward(model, tokens)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    parameters = list(model.parameters())
    for grad, expected_grad in zip(
        torch.autograd.grad((actual * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("cell", "module"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_stacked_layers_match_pytorch(cell, module):
    model, tokens = make_model(cell, layers=3), random_tokens()
    stack = module(SIZES["embedding_dim"], SIZES["hidden_dim"], num_layers=3, batch_first=True).double()
    with torch.no_grad():
        for mine, its in zip(
            (p for layer in model.layers for p in layer.parameters()), stack.parameters(), strict=True
        ):
            its.copy_(mine)
    output, last = stack(model.embed(tokens))
    logits, state = model.forward_from(tokens, model.init_state(3))
    torch.testing.assert_close(logits, model.readout(output), rtol=0, atol=1e-12)
    hidden = last[0] if cell == "lstm" else last
    torch.testing.assert_close(state.hidden, hidden.transpose(0, 1), rtol=0, atol=1e-12)
    assert (state.cell is not None) == (cell == "lstm")


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_text_can_be_processed_whole_in_chunks_or_stepwise(cell, learned, dtype, tolerance):
    model, tokens = make_model(cell, dtype, learned_initial_state=learned), random_tokens()
    full = model(tokens)
    state, parts = model.init_state(3), []
    for part in tokens.split([4, 1, 3, 1], dim=1):
        logits, state = model.forward_from(part, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=tolerance)
    state, steps = model.init_state(3), []
    for token in tokens.unbind(1):
        logits, state = model.step(token, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, dim=1), full, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cell", CELLS)
def test_a_text_alone_matches_a_batch(cell):
    model, tokens = make_model(cell, torch.float32, learned_initial_state=True), random_tokens(batch=4)
    together, state = model.forward_from(tokens, model.init_state(4))
    for row in range(4):
        alone, own = model.forward_from(tokens[row : row + 1], model.init_state(1))
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-5)
        torch.testing.assert_close(own.hidden, select(state, torch.tensor([row])).hidden, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_reordered_rows_of_a_state_continue_correctly(cell):
    model, tokens = make_model(cell), random_tokens()
    order = torch.tensor([2, 0, 0])
    _, state = model.forward_from(tokens[:, :4], model.init_state(3))
    logits, _ = model.forward_from(tokens[order, 4:], select(state, order))
    torch.testing.assert_close(logits, model(tokens[order])[:, 4:], rtol=0, atol=1e-12)


def test_sequence_dropout_uses_one_mask_for_all_steps():
    torch.manual_seed(0)
    mask = SequenceDropout(0.25).train()(torch.ones(40, 6, 50))
    assert mask.equal(mask[:, :1].expand_as(mask))
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert not mask[0].equal(mask[1])  # each sequence has its own
    assert (mask == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert SequenceDropout(0.25).eval()(mask).equal(mask)


@pytest.mark.parametrize("cell", CELLS)
def test_layer_inputs_and_outputs_have_one_dropout_mask_for_all_steps(cell):
    model = make_model(cell, dropout=0.5, hidden_dim=40, embedding_dim=40).train()
    layer_inputs, left = [], []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
        layer.register_forward_hook(lambda _, __, out: left.append(out[0]))
    model.readout.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    tokens = random_tokens()
    model(tokens)
    for before, after in zip((model.embed(tokens), *left), layer_inputs, strict=True):
        kept = after / before  # 0 or 2
        torch.testing.assert_close(kept, kept[:, :1].expand_as(kept))
        assert {round(value, 6) for value in kept.flatten().tolist()} == {0.0, 2.0}
    assert len(layer_inputs) == 3


@pytest.mark.parametrize("cell", CELLS)
def test_weight_dropout_equals_masked_recurrent_matrices(cell):
    model, tokens = make_model(cell, weight_dropout=0.4).train(), random_tokens()
    torch.manual_seed(17)
    actual = model(tokens)
    actual.sum().backward()
    assert not actual.equal(make_model(cell)(tokens))
    torch.manual_seed(17)
    masked = make_model(cell, learned_initial_state=False)
    torch.manual_seed(17)
    with torch.no_grad():
        for layer in masked.layers:
            layer.weights.weight_hh_l0.copy_(F.dropout(layer.weights.weight_hh_l0, 0.4))
    torch.testing.assert_close(actual, masked(tokens), rtol=0, atol=1e-12)
    for mine, its in zip(model.layers, masked.layers, strict=True):  # dropped weights get no gradient
        dropped = its.weights.weight_hh_l0 == 0
        assert 0 < dropped.sum() < dropped.numel()
        assert mine.weights.weight_hh_l0.grad[dropped].abs().max() == 0
        assert (mine.weights.weight_ih_l0.grad != 0).all(dim=0).any()


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_acts_in_training_only(cell):
    tokens = random_tokens()
    assert make_model(cell, dropout=0.5, weight_dropout=0.5)(tokens).equal(make_model(cell)(tokens))


def test_tied_embeddings_are_one_matrix():
    model = make_model("lstm", embedding_dim=7, tie_embeddings=True)
    assert model.readout.weight is model.embed.weight
    assert [name for name, _ in model.named_parameters() if name.startswith(("embed", "readout.w"))] == ["embed.weight"]


def test_a_learned_initial_state_is_a_parameter_and_a_zero_one_is_not():
    zero, learned = make_model("lstm"), make_model("lstm", learned_initial_state=True)
    assert zero.init_state(2).hidden.abs().max() == 0
    assert set(dict(learned.named_parameters())) - set(dict(zero.named_parameters())) == {"initial_state"}
    assert learned.init_state(2).cell[0].equal(learned.init_state(2).cell[1])
    assert set(zero.state_dict()) == set(dict(zero.named_parameters()))  # what is saved


def test_an_lstm_starts_with_a_forget_bias_of_one():
    layer = RNNLM(RNNLMConfig(**SIZES)).layers[0]
    i, f, *_ = layer.weights.bias_ih_l0.chunk(4)
    assert f.tolist() == [1.0] * SIZES["hidden_dim"]
    assert i.abs().max() < 1


def test_under_autocast_the_state_keeps_its_precision():
    model = make_model("lstm", torch.float32, dropout=0.2, weight_dropout=0.2).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = model.forward_from(random_tokens(), model.init_state(3))
    assert state.hidden.dtype == state.cell.dtype == torch.float32
    logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_a_small_model_learns_a_pattern(cell):
    torch.manual_seed(0)
    model = RNNLM(RNNLMConfig(vocab_size=3, cell=cell, layers=1, embedding_dim=8, hidden_dim=16, dropout=0.0)).train()
    tokens = torch.tensor([[0, 1, 1, 2] * 4])  # the token after a 1 depends on the one before it
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
        ({"hidden_dim": 0}, "hidden_dim must be"),
        ({"layers": 2000}, "layers must be"),
        ({"vocab_size": 2**25}, "vocab_size must be"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"weight_dropout": -0.1}, "weight_dropout must be"),
        ({"weight_dropout": float("nan")}, "weight_dropout must be"),
        ({"tie_embeddings": True}, "tie_embeddings needs"),
    ],
)
def test_invalid_configs_raise(changes, words):
    with pytest.raises(InputError, match=words):
        RNNLMConfig(**{**SIZES, **changes})

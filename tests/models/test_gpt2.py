"""GPT-2: its equations, read at once, in parts, token by token, padded, packed, compiled."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, greedy_search
from qkv.interop.families.gpt2 import FAMILY
from qkv.interop.released import write_released
from qkv.models.gpt2 import GPT2, PRESETS, Config
from qkv.nn.state import select

SIZES = {"vocabulary_size": 13, "dim": 12, "heads": 3, "layers": 2, "feedforward": 20, "max_length": 16}
POSITIONS = ["learned", "sinusoidal", "rotary", "alibi", "relative"]


def made(dtype: torch.dtype = torch.float64, **changes: Any) -> GPT2:
    torch.manual_seed(3)
    model = GPT2(Config(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms begin at 0 and 1, where a mistake could hide
            parameter.normal_(std=0.4)
    return model


def some_tokens(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(SIZES["vocabulary_size"], (batch, length), generator=torch.Generator().manual_seed(5))


def by_the_equations(model: GPT2, tokens: Tensor) -> Tensor:
    """The equations of the module's docstring, one token, head and earlier token at a time."""
    c = model.config
    rows = []
    for row in tokens:
        x = [model.embed.weight[token] + model.positions.weight[place] for place, token in enumerate(row)]
        for block in model.blocks:
            norm = [F.layer_norm(h, (c.dim,), *block.attention_norm.parameters(), c.eps) for h in x]
            parts = [
                (block.attention.project.weight @ h + block.attention.project.bias).view(3, c.heads, -1) for h in norm
            ]
            for t in range(len(x)):
                read = []
                for head in range(c.heads):
                    scores = [parts[t][0, head] @ parts[s][1, head] / math.sqrt(c.head_dim) for s in range(t + 1)]
                    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                    read.append(sum(weights[s] * parts[s][2, head] for s in range(t + 1)))
                x[t] = x[t] + block.attention.output.weight @ torch.cat(read) + block.attention.output.bias
            for t, h in enumerate(x):
                wide = block.feedforward.widen(F.layer_norm(h, (c.dim,), *block.feedforward_norm.parameters(), c.eps))
                wide = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
                x[t] = h + block.feedforward.narrow(wide)
        rows.append(torch.stack([F.layer_norm(h, (c.dim,), *model.norm.parameters(), c.eps) for h in x]))
    return torch.stack(rows) @ model.readout.weight.T


@pytest.mark.parametrize("tie", [True, False])
def test_the_model_is_its_equations_and_so_are_its_gradients(tie):
    model, tokens = made(tie=tie), some_tokens(batch=2, length=5)
    found, expected = model(tokens), by_the_equations(model, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    direction = torch.randn(found.shape, dtype=torch.float64)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((found * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("position", POSITIONS)
def test_gradients_are_those_of_finite_differences(position):
    model, tokens = made(position=position, layers=1, dim=6, feedforward=5), some_tokens(batch=2, length=4)
    torch.manual_seed(1)
    direction = torch.randn(2, 4, SIZES["vocabulary_size"], dtype=torch.float64)

    def value() -> Tensor:
        return (model(tokens) * direction).sum()

    value().backward()
    for name, parameter in model.named_parameters():
        way = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * way
            above = value()
            parameter -= 2e-5 * way
            below = value()
            parameter += 1e-5 * way
        expected = float(above - below) / 2e-5
        assert float((parameter.grad * way).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_a_text_can_be_read_whole_in_parts_or_token_by_token(position, dtype, tolerance):
    model, tokens = made(dtype, position=position), some_tokens()
    whole = model(tokens)
    state, parts = model.start(3), []
    for part in tokens.split([4, 1, 3, 1], dim=1):
        logits, state = model.read(part, state)
        parts.append(logits)
    assert state.position == 9
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=tolerance)
    state, steps = model.start(3), []
    for token in tokens.unbind(1):
        logits, state = model.step(token, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=0, atol=tolerance)


@pytest.mark.parametrize("position", POSITIONS)
def test_no_token_sees_a_later_one_and_every_later_one_is_changed(position):
    model, tokens = made(position=position), some_tokens(batch=1)
    other = tokens.clone()
    other[0, 4] = (other[0, 4] + 1) % SIZES["vocabulary_size"]
    changed = (model(tokens) - model(other)).abs().amax(dim=-1)[0]
    assert changed[:4].max() == 0
    assert changed[4:].min() > 1e-6


@pytest.mark.parametrize("position", POSITIONS)
def test_the_order_of_earlier_tokens_matters(position):
    model = made(position=position, layers=1)
    there, back = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 1, 4]])
    assert (model(there) - model(back))[0, -1].abs().max() > 1e-3


@pytest.mark.parametrize("position", POSITIONS)
def test_a_text_is_read_alike_alone_and_in_a_batch(position):
    model, tokens = made(torch.float32, position=position), some_tokens(batch=4)
    together = model(tokens)
    for row in range(4):
        torch.testing.assert_close(model(tokens[row : row + 1]), together[row : row + 1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_rows_that_are_filled_up_on_the_left_are_read_as_if_they_were_alone(position):
    model, tokens, padding = made(position=position), some_tokens(), torch.tensor([0, 3, 8])
    at_once = model(tokens, padding=padding)
    _, state = model.read(tokens[:, :5], model.start(3, padding))
    in_parts, _ = model.read(tokens[:, 5:], state)
    assert at_once.isfinite().all()
    for row, left in enumerate(padding.tolist()):
        alone = model(tokens[row : row + 1, left:])[0]
        torch.testing.assert_close(at_once[row, left:], alone, rtol=0, atol=1e-11)
        torch.testing.assert_close(in_parts[row, max(0, left - 5) :], alone[-4:], rtol=0, atol=1e-11)


def test_rows_that_are_filled_up_on_the_right_are_read_as_transformers_reads_them(tmp_path):
    transformers = pytest.importorskip("transformers")
    model, tokens = made(torch.float32), some_tokens()
    write_released(model, FAMILY, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager")
    real = torch.arange(9) < torch.tensor([9, 5, 1])[:, None]
    with torch.inference_mode():
        expected = theirs(tokens, attention_mask=real.long()).logits
        torch.testing.assert_close(model(tokens)[real], expected[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_texts_that_are_packed_into_one_row_are_read_as_if_they_were_alone(position):
    model, tokens = made(position=position), some_tokens(batch=2)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2], [7, 7, 5, 5, 5, 5, 5, 5, 5]])
    packed = model(tokens, documents=documents)
    for row, cuts in enumerate([[4, 2, 3], [2, 7]]):
        for text, logits in zip(tokens[row].split(cuts), packed[row].split(cuts), strict=True):
            torch.testing.assert_close(logits, model(text[None])[0], rtol=0, atol=1e-11)


def test_rows_of_a_state_go_on_as_if_they_had_always_been_in_that_order():
    model, tokens, padding = made(), some_tokens(), torch.tensor([2, 0, 1])
    order = torch.tensor([2, 0, 0])
    _, state = model.read(tokens[:, :4], model.start(3, padding))
    logits, _ = model.read(tokens[order, 4:], select(state, order))
    expected = model(tokens[order], padding=padding[order])[:, 4:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-11)


def test_greedy_search_takes_the_best_token_of_the_whole_text_each_time():
    model, tokens = made(), some_tokens(batch=2, length=3)
    _, state = model.read(tokens[:, :-1], model.start(2))
    rules = DecodingConstraints(batch=2, begin=tokens[:, -1].tolist(), end=None, max_length=8)
    found = [list(one.tokens) for one in greedy_search(model, state, rules)]
    for _ in range(8):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    assert found == tokens[:, 3:].tolist()


def test_sines_are_added_to_embeddings_that_are_not_small_beside_them():
    model, tokens, entered = made(position="sinusoidal"), some_tokens(), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    model(tokens)
    sines = [
        [(math.sin, math.cos)[i % 2](place / 10000 ** ((i - i % 2) / 12)) for i in range(12)] for place in range(9)
    ]
    expected = math.sqrt(12) * model.embed.weight[tokens] + torch.tensor(sines, dtype=torch.float64)
    torch.testing.assert_close(entered[0], expected)


def test_there_is_nothing_beyond_the_last_learned_position():
    model, tokens = made(), some_tokens(batch=1, length=17)
    assert model(tokens[:, :16]).shape == (1, 16, 13)
    with pytest.raises(InputError, match="position 16"):
        model(tokens)
    _, state = model.read(tokens[:, :16], model.start(1))
    with pytest.raises(InputError, match="position 16"):
        model.step(tokens[:, 16], state)
    padded = model(tokens, padding=torch.tensor([1]))  # sixteen tokens stand in these seventeen places
    torch.testing.assert_close(padded[:, 1:], model(tokens[:, 1:]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "learned"])
def test_other_positions_go_on_beyond_max_length(position):
    assert made(position=position)(some_tokens(length=40)).isfinite().all()


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "bilinear", "low_rank", "concat", "location"])
def test_any_score_can_take_the_place_of_the_scaled_dot_product(score):
    model, tokens = made(score=score), some_tokens()
    _, state = model.read(tokens[:, :5], model.start(3))
    torch.testing.assert_close(model.read(tokens[:, 5:], state)[0], model(tokens)[:, 5:], rtol=0, atol=1e-10)
    assert not model(tokens).allclose(made()(tokens), atol=1e-3)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)],
)
def test_released_sizes_have_the_published_numbers_of_parameters(preset, parameters):
    with torch.device("meta"):
        model = GPT2(Config(50257, **PRESETS[preset]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_weights_begin_as_gpt2s_do():
    torch.manual_seed(0)
    model = GPT2(Config(500, dim=128, heads=4, layers=8))
    assert model.readout.weight is model.embed.weight
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0
        elif "norm" in name:
            assert parameter.min() == parameter.max() == 1
        else:
            residual = "attention.output" in name or "narrow" in name
            expected = 0.02 / 4 if residual else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_something_is_dropped_in_training_and_nothing_outside_of_it():
    tokens = some_tokens()
    for changes in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        model = made(**changes)
        assert model(tokens).equal(made()(tokens))
        assert not model.train()(tokens).allclose(made()(tokens))


def test_in_training_embeddings_and_what_each_layer_adds_are_dropped():
    model, entered = made(dropout=0.5).train(), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    model(some_tokens())
    (x,) = entered
    assert 0.4 < (x == 0).double().mean() < 0.6
    dropped, _ = model.blocks[0](x)
    whole, _ = model.eval().blocks[0](x)
    assert not dropped.allclose(whole)


def test_under_autocast_it_stays_close_and_every_weight_learns():
    model, tokens = made(torch.float32), some_tokens()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.3
    exact = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = model.read(tokens, model.start(3))
        step, _ = model.step(tokens[:, 0], state)
    assert step.isfinite().all()
    torch.testing.assert_close(logits.float(), exact, rtol=0, atol=0.05)
    logits.float().square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_small_model_learns_a_pattern(position):
    torch.manual_seed(0)
    config = Config(3, dim=16, heads=2, layers=1, max_length=16, position=position, dropout=0.0, attention_dropout=0.0)
    model = GPT2(config).train()
    tokens = torch.tensor([[0, 1, 1, 2] * 4])  # what follows a 1 depends on what came before it
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_what_it_looks_at_can_be_watched_by_name():
    model, tokens = made(), some_tokens()
    with qkv.watch(model, layers=[1], heads=[2]) as seen:
        model(tokens, padding=torch.tensor([0, 2, 4]))
    weights = seen["blocks.1"].weights
    assert weights.shape == (3, 1, 9, 9)
    assert weights.triu(1).abs().max() == 0
    assert weights[2, :, :, :4].abs().max() == 0
    torch.testing.assert_close(weights[2, 0, 4:].sum(-1), torch.ones(5, dtype=torch.float64))


def test_an_empty_batch_and_a_single_token_are_read():
    model = made()
    assert model(torch.zeros(0, 4, dtype=torch.long)).shape == (0, 4, 13)
    assert model(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 13)


def test_a_batch_is_packed_or_padded_but_not_both():
    tokens = some_tokens()
    with pytest.raises(InputError, match="not both"):
        made()(tokens, padding=torch.tensor([0, 1, 2]), documents=torch.zeros_like(tokens))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 0}, "dim must lie between"),
        ({"feedforward": 0}, "feedforward must lie between"),
        ({"max_length": 2**25}, "max_length must lie between"),
        ({"layers": 2000}, "layers must be 1,024 at most"),
        ({"dim": 13}, "dim 13 must be a multiple of heads 3"),
        ({"vocabulary_size": 2**24, "dim": 3 * 2**20}, "a matrix of 3145728 by 16777216 numbers is too large"),
        ({"position": "rotery"}, r"did you mean rotary\?"),
        ({"dim": 3 * 2**16, "feedforward": 1}, "a matrix of 196608 by 589824 numbers is too large"),
        ({"position": "rotary", "dim": 9}, "a head has 3"),
        ({"score": "scaled"}, r"did you mean scaled_dot\?"),
        ({"activation": "gelu_tan"}, r"did you mean gelu_tanh\?"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout must lie in"),
        ({"eps": float("nan")}, r"eps must lie in"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Config(**{**SIZES, **changes})


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("position", "given"),
    [("learned", "nothing"), ("learned", "padding"), ("rotary", "padding"), ("alibi", "documents")],
)
def test_one_graph_computes_the_same_and_shows_the_same_attention(position, given):
    torch.compiler.reset()  # the code is compiled anew for each of these cases, which the compiler does a few times
    model, tokens = made(torch.float32, position=position), some_tokens()
    extra = {
        "nothing": {},
        "padding": {"padding": torch.tensor([0, 3, 5])},
        "documents": {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]] * 3)},
    }[given]
    with qkv.watch(model) as expected:
        logits = model(tokens, **extra)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, **extra), logits)
    with qkv.watch(compiled) as seen:
        torch.testing.assert_close(compiled(tokens, **extra), logits)
    assert set(seen) == set(expected) == {"blocks.0", "blocks.1"}
    for layer, record in seen.items():
        torch.testing.assert_close(record.weights, expected[layer].weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("given", ["nothing", "padding", "documents"])
@torch.inference_mode()
def test_a_cuda_graph_replays_with_new_inputs(given):
    model, tokens = made(torch.float32).cuda(), some_tokens().cuda()
    extra = {
        "nothing": {},
        "padding": {"padding": torch.tensor([0, 3, 5]).cuda()},
        "documents": {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]] * 3).cuda()},
    }[given]
    model(tokens, **extra)  # lets libraries set themselves up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model(tokens, **extra)
    tokens.copy_(tokens.flip(0))
    graph.replay()
    torch.testing.assert_close(captured, model(tokens, **extra))


def test_nothing_but_parameters_is_saved():
    model = made(position="sinusoidal")
    model(some_tokens())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()} | {"readout.weight"}

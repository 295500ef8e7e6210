"""GPT-2: equations, chunked and stepwise decoding, padding, packing and compilation."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, greedy_search
from qkv.hub.families.gpt2 import FAMILY
from qkv.hub.released import write_released
from qkv.models.gpt2 import GPT2, PRESETS, GPT2Config
from qkv.nn.interfaces import select

SIZES = {"vocab_size": 13, "dim": 12, "heads": 3, "layers": 2, "ffn_dim": 20, "max_length": 16}
POSITIONS = ["learned", "sinusoidal", "rotary", "alibi", "relative"]


def make_model(dtype: torch.dtype = torch.float64, **changes: Any) -> GPT2:
    torch.manual_seed(3)
    model = GPT2(GPT2Config(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at 0 and 1, which could hide a mistake
            parameter.normal_(std=0.4)
    return model


def random_tokens(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(5))


def reference_forward(model: GPT2, tokens: Tensor) -> Tensor:
    """The equations of the module docstring, one token, head and key at a time."""
    c = model.config
    rows = []
    for row in tokens:
        x = [model.embed.weight[token] + model.positions.weight[position] for position, token in enumerate(row)]
        for block in model.blocks:
            norm = [F.layer_norm(h, (c.dim,), *block.attention_norm.parameters(), c.layer_norm_eps) for h in x]
            parts = [
                (block.attention.qkv_proj.weight @ h + block.attention.qkv_proj.bias).view(3, c.heads, -1) for h in norm
            ]
            for t in range(len(x)):
                read = []
                for head in range(c.heads):
                    scores = [parts[t][0, head] @ parts[s][1, head] / math.sqrt(c.sizes.query) for s in range(t + 1)]
                    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                    read.append(sum(weights[s] * parts[s][2, head] for s in range(t + 1)))
                x[t] = x[t] + block.attention.out_proj.weight @ torch.cat(read) + block.attention.out_proj.bias
            for t, h in enumerate(x):
                wide = block.ffn.up_proj(F.layer_norm(h, (c.dim,), *block.ffn_norm.parameters(), c.layer_norm_eps))
                wide = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
                x[t] = h + block.ffn.down_proj(wide)
        rows.append(torch.stack([F.layer_norm(h, (c.dim,), *model.norm.parameters(), c.layer_norm_eps) for h in x]))
    return torch.stack(rows) @ model.readout.weight.T


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_outputs_and_gradients_match_the_equations(tie_embeddings):
    model, tokens = make_model(tie_embeddings=tie_embeddings), random_tokens(batch=2, length=5)
    actual, expected = model(tokens), reference_forward(model, tokens)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
    direction = torch.randn(actual.shape, dtype=torch.float64)
    parameters = list(model.parameters())
    for grad, expected_grad in zip(
        torch.autograd.grad((actual * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, expected_grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("position", POSITIONS)
def test_gradients_match_finite_differences(position):
    model, tokens = make_model(position=position, layers=1, dim=6, ffn_dim=5), random_tokens(batch=2, length=4)
    torch.manual_seed(1)
    direction = torch.randn(2, 4, SIZES["vocab_size"], dtype=torch.float64)

    def value() -> Tensor:
        return (model(tokens) * direction).sum()

    value().backward()
    for name, parameter in model.named_parameters():
        delta = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * delta
            above = value()
            parameter -= 2e-5 * delta
            below = value()
            parameter += 1e-5 * delta
        expected = float(above - below) / 2e-5
        assert float((parameter.grad * delta).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_a_text_can_be_processed_whole_in_chunks_or_stepwise(position, dtype, tolerance):
    model, tokens = make_model(dtype, position=position), random_tokens()
    full = model(tokens)
    state, parts = model.init_state(3), []
    for part in tokens.split([4, 1, 3, 1], dim=1):
        logits, state = model.forward_from(part, state)
        parts.append(logits)
    assert state.position == 9
    torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=tolerance)
    state, steps = model.init_state(3), []
    for token in tokens.unbind(1):
        logits, state = model.step(token, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, dim=1), full, rtol=0, atol=tolerance)


@pytest.mark.parametrize("position", POSITIONS)
def test_tokens_affect_all_later_positions_and_no_earlier_one(position):
    model, tokens = make_model(position=position), random_tokens(batch=1)
    other = tokens.clone()
    other[0, 4] = (other[0, 4] + 1) % SIZES["vocab_size"]
    changed = (model(tokens) - model(other)).abs().amax(dim=-1)[0]
    assert changed[:4].max() == 0
    assert changed[4:].min() > 1e-6


@pytest.mark.parametrize("position", POSITIONS)
def test_the_order_of_earlier_tokens_matters(position):
    model = make_model(position=position, layers=1)
    there, back = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 1, 4]])
    assert (model(there) - model(back))[0, -1].abs().max() > 1e-3


@pytest.mark.parametrize("position", POSITIONS)
def test_a_text_alone_matches_a_batch(position):
    model, tokens = make_model(torch.float32, position=position), random_tokens(batch=4)
    together = model(tokens)
    for row in range(4):
        torch.testing.assert_close(model(tokens[row : row + 1]), together[row : row + 1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_left_padded_rows_match_rows_alone(position):
    model, tokens, padding = make_model(position=position), random_tokens(), torch.tensor([0, 3, 8])
    at_once = model(tokens, padding=padding)
    _, state = model.forward_from(tokens[:, :5], model.init_state(3, padding))
    in_parts, _ = model.forward_from(tokens[:, 5:], state)
    assert at_once.isfinite().all()
    for row, left in enumerate(padding.tolist()):
        alone = model(tokens[row : row + 1, left:])[0]
        torch.testing.assert_close(at_once[row, left:], alone, rtol=0, atol=1e-11)
        torch.testing.assert_close(in_parts[row, max(0, left - 5) :], alone[-4:], rtol=0, atol=1e-11)


def test_right_padded_rows_match_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    model, tokens = make_model(torch.float32), random_tokens()
    write_released(model, FAMILY, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager")
    real = torch.arange(9) < torch.tensor([9, 5, 1])[:, None]
    with torch.inference_mode():
        expected = theirs(tokens, attention_mask=real.long()).logits
        torch.testing.assert_close(model(tokens)[real], expected[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_packed_texts_match_texts_alone(position):
    model, tokens = make_model(position=position), random_tokens(batch=2)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2], [7, 7, 5, 5, 5, 5, 5, 5, 5]])
    packed = model(tokens, documents=documents)
    for row, cuts in enumerate([[4, 2, 3], [2, 7]]):
        for text, logits in zip(tokens[row].split(cuts), packed[row].split(cuts), strict=True):
            torch.testing.assert_close(logits, model(text[None])[0], rtol=0, atol=1e-11)


def test_reordered_rows_of_a_state_continue_correctly():
    model, tokens, padding = make_model(), random_tokens(), torch.tensor([2, 0, 1])
    order = torch.tensor([2, 0, 0])
    _, state = model.forward_from(tokens[:, :4], model.init_state(3, padding))
    logits, _ = model.forward_from(tokens[order, 4:], select(state, order))
    expected = model(tokens[order], padding=padding[order])[:, 4:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-11)


def test_greedy_search_takes_the_argmax_at_every_step():
    model, tokens = make_model(), random_tokens(batch=2, length=3)
    _, state = model.forward_from(tokens[:, :-1], model.init_state(2))
    rules = DecodingConstraints(batch=2, begin=tokens[:, -1].tolist(), end=None, max_new_tokens=8)
    actual = [list(item.tokens) for item in greedy_search(model, state, rules)]
    for _ in range(8):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    assert actual == tokens[:, 3:].tolist()


def test_embeddings_are_scaled_with_sinusoidal_positions():
    model, tokens, layer_inputs = make_model(position="sinusoidal"), random_tokens(), []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    model(tokens)
    sines = [
        [(math.sin, math.cos)[i % 2](position / 10000 ** ((i - i % 2) / 12)) for i in range(12)]
        for position in range(9)
    ]
    expected = math.sqrt(12) * model.embed.weight[tokens] + torch.tensor(sines, dtype=torch.float64)
    torch.testing.assert_close(layer_inputs[0], expected)


def test_inputs_beyond_the_learned_positions_raise():
    model, tokens = make_model(), random_tokens(batch=1, length=17)
    assert model(tokens[:, :16]).shape == (1, 16, 13)
    with pytest.raises(InputError, match="position"):
        model(tokens)
    _, state = model.forward_from(tokens[:, :16], model.init_state(1))
    with pytest.raises(InputError, match="position"):
        model.step(tokens[:, 16], state)
    padded = model(tokens, padding=torch.tensor([1]))  # one of seventeen positions is padding
    torch.testing.assert_close(padded[:, 1:], model(tokens[:, 1:]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "learned"])
def test_other_positions_extrapolate_beyond_max_length(position):
    assert make_model(position=position)(random_tokens(length=40)).isfinite().all()


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "bilinear", "low_rank", "concat", "location"])
def test_any_score_can_replace_the_scaled_dot_product(score):
    model, tokens = make_model(score=score), random_tokens()
    _, state = model.forward_from(tokens[:, :5], model.init_state(3))
    torch.testing.assert_close(model.forward_from(tokens[:, 5:], state)[0], model(tokens)[:, 5:], rtol=0, atol=1e-10)
    assert not model(tokens).allclose(make_model()(tokens), atol=1e-3)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)],
)
def test_presets_have_the_published_parameter_counts(preset, parameters):
    with torch.device("meta"):
        model = GPT2(GPT2Config(vocab_size=50257, **PRESETS[preset]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_weights_are_initialised_as_in_gpt2():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=500, dim=128, heads=4, layers=8))
    assert model.readout.weight is model.embed.weight
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0
        elif "norm" in name:
            assert parameter.min() == parameter.max() == 1
        else:
            residual = "attention.out_proj" in name or "down_proj" in name
            expected = 0.02 / 4 if residual else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_dropout_acts_in_training_only():
    tokens = random_tokens()
    for changes in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        model = make_model(**changes)
        assert model(tokens).equal(make_model()(tokens))
        assert not model.train()(tokens).allclose(make_model()(tokens))


def test_dropout_acts_on_embeddings_and_residual_branches():
    model, layer_inputs = make_model(dropout=0.5).train(), []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    model(random_tokens())
    (x,) = layer_inputs
    assert 0.4 < (x == 0).double().mean() < 0.6
    dropped = model.blocks[0](x)
    full = model.eval().blocks[0](x)
    assert not dropped.allclose(full)


def test_autocast_stays_close_and_every_weight_gets_a_gradient():
    model, tokens = make_model(torch.float32), random_tokens()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.3
    exact = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = model.forward_from(tokens, model.init_state(3))
        step, _ = model.step(tokens[:, 0], state)
    assert step.isfinite().all()
    torch.testing.assert_close(logits.float(), exact, rtol=0, atol=0.05)
    logits.float().square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_small_model_learns_a_pattern(position):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=3, dim=16, heads=2, layers=1, max_length=16, position=position, dropout=0.0, attention_dropout=0.0
    )
    model = GPT2(config).train()
    tokens = torch.tensor([[0, 1, 1, 2] * 4])  # the token after a 1 depends on the one before it
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_watch_selects_layers_and_heads():
    model, tokens = make_model(), random_tokens()
    with qkv.watch(model, layers=[1], heads=[2]) as seen:
        model(tokens, padding=torch.tensor([0, 2, 4]))
    weights = seen["blocks.1"].weights
    assert weights.shape == (3, 1, 9, 9)
    assert weights.triu(1).abs().max() == 0
    assert weights[2, :, :, :4].abs().max() == 0
    torch.testing.assert_close(weights[2, 0, 4:].sum(-1), torch.ones(5, dtype=torch.float64))


def test_an_empty_batch_and_a_single_token_work():
    model = make_model()
    assert model(torch.zeros(0, 4, dtype=torch.long)).shape == (0, 4, 13)
    assert model(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 13)


def test_a_batch_is_packed_or_padded_but_not_both():
    tokens = random_tokens()
    with pytest.raises(InputError, match="mutually exclusive"):
        make_model()(tokens, padding=torch.tensor([0, 1, 2]), documents=torch.zeros_like(tokens))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 0}, "dim must be"),
        ({"ffn_dim": 0}, "ffn_dim must be"),
        ({"max_length": 2**25}, "max_length must be"),
        ({"layers": 2000}, "layers must be"),
        ({"dim": 13}, "dim 13 must be divisible by heads 3"),
        ({"vocab_size": 2**24, "dim": 3 * 2**20}, "too large"),
        ({"position": "rotery"}, r"did you mean rotary\?"),
        ({"dim": 3 * 2**16, "ffn_dim": 1}, "too large"),
        ({"position": "rotary", "dim": 9}, "position 'rotary': .* must be even"),
        ({"score": "scaled"}, r"did you mean scaled_dot\?"),
        ({"activation": "gelu_tan"}, r"did you mean gelu_tanh\?"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"attention_dropout": -0.1}, "attention_dropout must be"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps must be"),
    ],
)
def test_invalid_configs_raise(changes, words):
    with pytest.raises(InputError, match=words):
        GPT2Config(**{**SIZES, **changes})


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("position", "kind"),
    [("learned", "nothing"), ("learned", "padding"), ("rotary", "padding"), ("alibi", "documents")],
)
def test_compiled_model_matches_eager_with_and_without_watch(position, kind):
    torch.compiler.reset()  # the code is compiled again for each case, which the compiler limits
    model, tokens = make_model(torch.float32, position=position), random_tokens()
    extra = {
        "nothing": {},
        "padding": {"padding": torch.tensor([0, 3, 5])},
        "documents": {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]] * 3)},
    }[kind]
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
@pytest.mark.parametrize("kind", ["nothing", "padding", "documents"])
@torch.inference_mode()
def test_a_cuda_graph_replays_with_new_inputs(kind):
    model, tokens = make_model(torch.float32).cuda(), random_tokens().cuda()
    extra = {
        "nothing": {},
        "padding": {"padding": torch.tensor([0, 3, 5]).cuda()},
        "documents": {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]] * 3).cuda()},
    }[kind]
    model(tokens, **extra)  # warm up libraries
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model(tokens, **extra)
    tokens.copy_(tokens.flip(0))
    graph.replay()
    torch.testing.assert_close(captured, model(tokens, **extra))


def test_nothing_but_parameters_is_saved():
    model = make_model(position="sinusoidal")
    model(random_tokens())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()} | {"readout.weight"}

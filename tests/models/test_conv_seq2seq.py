"""The convolutional encoder-decoder: equations, stepwise decoding, and the size of its state."""

import dataclasses
import math

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.config import build, describe_fields
from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from qkv.nn.interfaces import select
from qkv.registry import registered
from tests.models.contract import CASES

VOCABULARY = 11
SIZES = {
    "source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "dim": 6, "hidden_dim": 8, "layers": 3,
    "encoder": {"name": "conv", "layers": 2}, "max_length": 12,
}  # fmt: skip


def make(dtype: torch.dtype = torch.float32, **changes: object) -> ConvSeq2Seq:
    torch.manual_seed(0)
    model = ConvSeq2Seq(ConvSeq2SeqConfig(**SIZES | changes)).to(dtype).eval()
    for parameter in model.parameters():  # biases start at 0, which could hide a mistake
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (3, n), generator=generator) for n in (7, 5))
    return source, target, torch.tensor([7, 4, 1])


def by_hand(model, source, target):
    """Logits and attention of each layer for one sentence, one position at a time."""
    c = model.config
    half = math.sqrt(0.5)

    def gated(convolve, window):
        out = convolve.linear.weight @ torch.cat(window) + convolve.linear.bias
        return out[: c.hidden_dim] * torch.sigmoid(out[c.hidden_dim :])

    def window(x, first):
        return [x[i] if 0 <= i < len(x) else torch.zeros(c.hidden_dim).double() for i in range(first, first + c.kernel)]

    def embed(part, tokens):
        return [part.weight[token] + part.positions.weight[i] for i, token in enumerate(tokens)]

    e, g = embed(model.encoder.embed, source), embed(model.embed, target)
    x = [model.encoder.up_proj(item) for item in e]
    for convolve in model.encoder.convolutions:
        x = [(gated(convolve, window(x, j - (c.kernel - 1) // 2)) + x[j]) * half for j in range(len(x))]
    z = [model.encoder.down_proj(item) for item in x]

    y = [model.up_proj(item) for item in g]
    attention = []
    for block in model.decoder:
        further, rows = [], []
        for i in range(len(y)):
            h = gated(block.convolve, window(y, i - c.kernel + 1))
            d = (block.q_proj(h) + g[i]) * half
            fit = torch.stack([(d * item).sum() for item in z])
            a = fit.exp() / fit.exp().sum()
            read = sum(a[j] * (z[j] + e[j]) * half for j in range(len(z))) * math.sqrt(len(z))
            further.append(((h + block.out_proj(read)) * half + y[i]) * half)
            rows.append(a)
        y = further
        attention.append(torch.stack(rows))
    return torch.stack([model.readout(model.down_proj(item)) for item in y]), attention


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_outputs_and_watched_weights_match_the_equations(kernel, batch):
    source, target, lengths = batch
    model = make(torch.float64, kernel=kernel)
    with qkv.watch(model) as seen:
        actual = model(source, target, lengths)
    assert list(seen) == ["decoder.0", "decoder.1", "decoder.2"]
    for row, length in enumerate(lengths.tolist()):
        logits, attention = by_hand(model, source[row, :length], target[row])
        torch.testing.assert_close(actual[row], logits, rtol=0, atol=1e-10)
        for record, expected in zip(seen.values(), attention, strict=True):
            torch.testing.assert_close(record.weights[row, 0, :, :length], expected, rtol=0, atol=1e-10)
            assert record.weights[row, 0, :, length:].eq(0).all()
    for record in seen.values():
        torch.testing.assert_close(record.weights.sum(-1), torch.ones(3, 1, 5, dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("kernel", [1, 2, 3, 7])
def test_stepwise_decoding_matches_teacher_forcing(batch, dtype, tolerance, kernel):
    source, target, lengths = batch
    model = make(dtype, kernel=kernel)
    memory = model.encode(source, lengths)
    at_once = model.decode(target, memory)
    state = model.init_state(memory)
    for t in range(target.shape[1]):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, at_once[:, t], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("score", "align"),
    [*((score, "softmax") for score in registered("score")), *(("dot", align) for align in registered("align"))],
)
def test_with_any_term_a_sentence_alone_matches_a_padded_batch(batch, score, align):
    source, target, lengths = batch
    model = make(score=score, align=align)
    together = model(source, target, lengths)
    padding = torch.arange(7) >= lengths[:, None]
    assert model(source.masked_fill(padding, 9), target, lengths).equal(together)
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-5)


def test_no_logit_depends_on_a_later_target_token(batch):
    source, target, lengths = batch
    model = make()
    before = model(source, target, lengths)
    for position in range(5):
        changed = target.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCABULARY
        after = model(source, changed, lengths)
        torch.testing.assert_close(before[:, :position], after[:, :position], rtol=0, atol=1e-6)
        assert not torch.allclose(before[:, position], after[:, position])


def stored(state) -> int:
    """Bytes of the storages of all tensors of a state."""
    if isinstance(state, torch.Tensor):
        return state.untyped_storage().nbytes()
    if dataclasses.is_dataclass(state):
        return sum(stored(getattr(state, field.name)) for field in dataclasses.fields(state))
    return sum(map(stored, state)) if isinstance(state, tuple) else 0


@torch.inference_mode()
def test_the_state_is_as_large_after_200_steps_as_after_10(batch):
    source, target, lengths = batch
    model = make(max_length=200)
    state = model.init_state(model.encode(source, lengths))
    memory = stored(state.memory)
    sizes = {}
    for count in range(1, 201):
        _, state = model.step(target[:, count % 5], state)
        sizes[count] = stored(state)
    assert sizes[200] == sizes[10]
    layers, kernel, hidden = 3, 3, 8
    assert sizes[200] - memory <= layers * 3 * kernel * hidden * 4  # rows, positions, features of 4 bytes


def test_reordered_beams_continue_from_their_own_history(batch):
    source, _, lengths = batch
    model = make()
    generator = torch.Generator().manual_seed(3)
    history = torch.full((3, 1), 2)
    origin = torch.arange(3)  # the sentence of each beam
    state = model.init_state(model.encode(source, lengths))
    for _ in range(12):  # as many tokens as the model allows, after the one that begins
        logits, state = model.step(history[:, -1], state)
        rows = torch.randint(0, len(history), (4,), generator=generator)
        token = torch.randint(4, VOCABULARY, (4, 1), generator=generator)
        history, origin, state = torch.cat((history[rows], token), dim=1), origin[rows], select(state, rows)
    logits, _ = model.step(history[:, -1], state)
    alone = model(source[origin], history, lengths[origin])[:, -1]
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-5)


def test_a_target_longer_than_max_length_raises(batch):
    source, _, lengths = batch
    with pytest.raises(InputError, match="position"):
        make()(source, torch.ones(3, 14, dtype=torch.long), lengths)


def test_gradients_match_finite_differences():
    model = make(torch.float64, dim=2, hidden_dim=2, layers=1, kernel=2, max_length=3)
    source, target = torch.tensor([[4, 5, 6], [7, 8, 9]]), torch.tensor([[4, 5], [6, 7]])
    lengths = torch.tensor([3, 1])
    names, weights = zip(*model.named_parameters(), strict=True)

    def logits(*weights):
        return functional_call(model, dict(zip(names, weights, strict=True)), (source, target, lengths))[:, :, :3]

    assert torch.autograd.gradcheck(logits, weights, fast_mode=True)


def test_encoder_gradients_are_averaged_over_decoder_layers(batch):
    source, target, lengths = batch
    model = make(torch.float64)  # with 3 layers in the decoder

    def loss():
        return F.cross_entropy(model(source, target, lengths).flatten(0, 1), target.flatten())

    loss().backward()
    for layer, share in (
        (model.encoder.down_proj, 1 / 3),
        (model.encoder.convolutions[0].linear, 1 / 3),
        (model.down_proj[0], 1),
    ):
        direction = torch.randn_like(layer.weight)
        directional = (layer.weight.grad * direction).sum()
        with torch.no_grad():
            layer.weight += 1e-5 * direction
            above = loss()
            layer.weight -= 2e-5 * direction
            below = loss()
            layer.weight += 1e-5 * direction
        torch.testing.assert_close(directional, share * (above - below) / 2e-5, rtol=1e-6, atol=1e-9)


def test_a_row_of_padding_is_finite_and_affects_no_other_row(batch):
    source, target, lengths = batch
    model = make()
    with_empty = model(source, target, torch.tensor([7, 4, 0]))
    assert with_empty.isfinite().all()
    torch.testing.assert_close(with_empty[:2], model(source, target, lengths)[:2])
    with_empty.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_an_empty_target_gives_empty_logits(batch):
    source, target, lengths = batch
    assert make()(source, target[:, :0], lengths).shape == (3, 0, VOCABULARY)


def test_it_runs_and_learns_in_bfloat16(batch):
    source, target, lengths = batch
    model = make()
    expected = model(source, target, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = model.encode(source, lengths)
        assert {item.dtype for item in (*memory.keys, memory.values)} == {torch.bfloat16}
        actual = model.decode(target, memory)
        state = model.init_state(memory)
        for t in range(5):
            logits, state = model.step(target[:, t], state)
    assert logits.dtype == torch.bfloat16
    assert (actual.float() - expected).abs().max() < 0.1 * expected.abs().max()
    actual.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_length_scaling_is_exact_in_bfloat16():
    model = make(max_length=300, encoder="conv", layers=1)
    source, lengths = torch.randint(4, VOCABULARY, (1, 299)), torch.tensor([299])
    shorter = torch.tensor([256])  # what 299 would be rounded towards; its root is 16
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        actual, base = (model.encode(source, n).values[0, 0, :200].float() for n in (lengths, shorter))
    expected = base / 16 * math.sqrt(299)
    torch.testing.assert_close(actual, expected, rtol=2**-8, atol=0)


def test_dropout_acts_in_training_only(batch):
    model = make(dropout=0.5)
    assert model(*batch).equal(model(*batch))
    model.train()
    assert not model(*batch).equal(model(*batch))


def test_tied_embeddings_are_one_matrix_and_untied_ones_three():
    def count(model):
        return sum(parameter.numel() for parameter in model.parameters())

    tied, untied = make(), make(tie_embeddings=False)
    assert tied.readout.weight is tied.encoder.embed.weight is tied.embed.weight
    assert count(untied) - count(tied) == 2 * VOCABULARY * 6


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"score": "dott"}, "did you mean dot"),
        ({"target_vocab_size": 12}, "tie_embeddings needs a shared vocabulary"),
        ({"kernel": 0}, "kernel must be"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"hidden_dim": 0}, "hidden_dim must be"),
        ({"layers": 10**6}, "layers must be"),
        ({"encoder": {"name": "rnn", "dim": 8}}, "encoder.dim 8 must equal dim 256"),
        ({"align": {"name": "local_m", "window": -1}}, "align.window"),
        ({"backend": "gpu"}, "backend = 'gpu'"),
        ({"source_vocab_size": 10**12}, "source_vocab_size must be"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        ConvSeq2SeqConfig(**wrong)


def test_a_config_is_complete_and_restored_from_its_data():
    config = ConvSeq2SeqConfig(encoder={"name": "rnn", "layers": 2}, score={"name": "low_rank", "rank": 4})
    assert build(ConvSeq2SeqConfig, config.to_dict(), "here") == config
    assert set(describe_fields(ConvSeq2SeqConfig)) == set(ConvSeq2SeqConfig.model_fields)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_the_backend_reaches_every_layer(batch, backend):
    model = make(torch.float64, backend=backend)
    assert [block.attend.backend for block in model.decoder] == [backend] * 3
    torch.testing.assert_close(model(*batch), make(torch.float64)(*batch))


def test_local_attention_follows_the_steps(batch):
    model = make(torch.float64, align={"name": "local_m", "window": 1})
    source, target, _ = batch
    near = (torch.arange(7) - torch.arange(5)[:, None]).abs() <= 1
    with qkv.watch(model) as seen:
        state = model.init_state(model.encode(source))
        steps = []
        for token in target.unbind(1):
            logits, state = model.step(token, state)
            steps.append(logits)
    assert seen["decoder.0"].weights[0, 0].gt(0).equal(near)
    torch.testing.assert_close(torch.stack(steps, dim=1), model(source, target))


@pytest.mark.compiled
def test_compiled_model_matches_eager_with_and_without_watch(batch):
    model = make()
    with qkv.watch(model) as expected:
        logits = model(*batch)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with qkv.watch(compiled) as seen:
        torch.testing.assert_close(compiled(*batch), logits)
    for layer, record in expected.items():
        torch.testing.assert_close(seen[layer].weights, record.weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_a_cuda_graph_replays_forward_and_step_with_new_inputs(batch, score):
    model = make(dim=16, hidden_dim=16, score=score).cuda()
    inputs = [x.cuda() for x in batch]
    others = [x.flip(0) for x in inputs]

    @torch.inference_mode()
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def run(source, target, lengths):
        memory = model.encode(source, lengths)
        step, _ = model.step(target[:, 0], model.init_state(memory))
        return model.decode(target, memory), step

    expected = run(*others)
    run(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = run(*inputs)
    for kept, other in zip(inputs, others, strict=True):
        kept.copy_(other)
    graph.replay()
    torch.testing.assert_close(actual, expected)


def test_weight_normalization_changes_the_gradient_but_not_the_function(tmp_path):
    case = CASES["conv_seq2seq"]
    plain, normalized, batch = case.build(), case.build(weight_norm=True), case.batch()
    torch.testing.assert_close(case.logits(normalized.eval(), batch), case.logits(plain.eval(), batch))
    linear = normalized.decoder[0].convolve.linear
    magnitude, direction = linear.parametrizations.weight.original0, linear.parametrizations.weight.original1
    with torch.no_grad():
        magnitude.mul_(2.0)
        direction.mul_(5.0)
    torch.testing.assert_close(linear.weight, 2 * plain.decoder[0].convolve.linear.weight)
    assert case.train(normalized, 20) < 1.5
    save_model(normalized.eval(), None, tmp_path)
    torch.testing.assert_close(case.logits(load(tmp_path), batch), case.logits(normalized, batch))

"""Copying: the mixture as a loop over tokens, its gradient, models with it, and the share of copied probability."""

import math

import pytest
import torch

import qkv
from qkv.attention.layers import attention_layers
from qkv.errors import ConfigError, Unsupported
from qkv.generation import DecodingConstraints, Engine, beam_search, greedy_search
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.nn.copying import AttentivePointerGenerator, PointerGenerator, record_copying

VOCABULARY, DIM, STEPS = 9, 6, 3
SOURCE = torch.tensor([[4, 5, 4, 8, 4], [7, 6, 0, 0, 0]])  # with a token that occurs three times, and padding
LENGTHS = torch.tensor([5, 2])
TARGET = torch.tensor([[2, 4, 8, 6], [2, 7, 7, 5]])


def random_inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, STEPS, VOCABULARY, generator=generator, dtype=torch.float64)
    hidden = torch.randn(2, STEPS, DIM, generator=generator, dtype=torch.float64)
    scores = torch.randn(2, STEPS, SOURCE.shape[1], generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.arange(SOURCE.shape[1]) >= LENGTHS[:, None, None], -torch.inf)
    return logits.to(dtype), hidden.to(dtype), scores.softmax(dim=-1).to(dtype)


def random_pointer_generator() -> PointerGenerator:
    torch.manual_seed(0)
    return PointerGenerator(DIM).double()


def test_the_probability_of_a_token_is_generated_plus_copied():
    copying, (logits, hidden, weights) = random_pointer_generator(), random_inputs()
    log_p = copying(logits, hidden, weights, SOURCE)
    g, b = copying.gate.weight[0].tolist(), copying.gate.bias.item()
    for row in range(2):
        for t in range(STEPS):
            gate = sum(g[i] * hidden[row, t, i].item() for i in range(DIM)) + b
            p_gen = 1 / (1 + math.exp(-gate))
            total = sum(math.exp(logit) for logit in logits[row, t].tolist())
            for w in range(VOCABULARY):
                copied = sum(weights[row, t, i].item() for i in range(int(LENGTHS[row])) if SOURCE[row, i].item() == w)
                p = p_gen * math.exp(logits[row, t, w].item()) / total + (1 - p_gen) * copied
                assert log_p[row, t, w].item() == pytest.approx(math.log(p), rel=1e-12)
    torch.testing.assert_close(log_p.logsumexp(dim=-1), torch.zeros(2, STEPS).double())


def test_gradients_match_finite_differences():
    copying, inputs = random_pointer_generator(), random_inputs()
    logits, hidden, weights = (tensor.requires_grad_() for tensor in inputs)
    assert torch.autograd.gradcheck(lambda *tensors: copying(*tensors, SOURCE), (logits, hidden, weights + 0.01))


@pytest.mark.parametrize("gate", [-200.0, 200.0])
def test_a_saturated_gate_has_finite_values_and_gradients(gate):
    copying, (logits, hidden, weights) = random_pointer_generator().float(), random_inputs(torch.float32)
    with torch.no_grad():
        copying.gate.bias.fill_(gate)
    logits = (100 * logits).requires_grad_()
    log_p = copying(logits, hidden, weights, SOURCE)
    log_p.sum().backward()
    assert log_p.isfinite().all()
    assert logits.grad.isfinite().all()
    assert copying.gate.weight.grad.isfinite().all()


def test_under_autocast_the_mixture_is_computed_in_float32():
    copying, (logits, hidden, weights) = random_pointer_generator().float(), random_inputs(torch.float32)
    exact = copying(logits, hidden, weights, SOURCE)
    with torch.autocast("cpu", torch.bfloat16):
        log_p = copying(logits, hidden, weights, SOURCE)
    assert log_p.dtype == torch.float32
    torch.testing.assert_close(log_p, exact, rtol=0.02, atol=0.02)


RNN = {"embedding_dim": 6, "hidden_dim": 8, "dropout": 0.0}
MODELS = {
    "bahdanau": (RNNSeq2Seq, RNN),
    "coverage": (RNNSeq2Seq, RNN | {"coverage": True, "cell": "lstm"}),
    "luong": (RNNSeq2Seq, RNN | {"decoder": "luong", "coverage": True, "tie_embeddings": True}),
    "luong at once": (RNNSeq2Seq, RNN | {"decoder": "luong", "input_feeding": False, "score": "bilinear"}),
    "transformer encoder": (RNNSeq2Seq, RNN | {"encoder": {"name": "transformer", "heads": 2}}),
    "transformer": (
        Transformer,
        {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 8, "dropout": 0.0},
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def make(name: str, **changes: object) -> RNNSeq2Seq | Transformer:
    torch.manual_seed(0)
    cls, options = MODELS[name]
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "max_length": 12}
    model = cls(cls.config_class(**sizes | options | {"copying": True} | changes)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


def initial_state(model: RNNSeq2Seq | Transformer):
    return model.init_state(model.encode(SOURCE, LENGTHS))


@every_model
def test_steps_and_single_rows_equal_one_pass(name):
    model = make(name)
    log_p = model(SOURCE, TARGET, LENGTHS)
    torch.testing.assert_close(log_p.logsumexp(dim=-1), torch.zeros(TARGET.shape).double())
    state = initial_state(model)
    for step in range(TARGET.shape[1]):
        step_log_p, state = model.step(TARGET[:, step], state)
        torch.testing.assert_close(step_log_p, log_p[:, step])
    for row, length in enumerate(LENGTHS):
        alone = model(SOURCE[row : row + 1, :length], TARGET[row : row + 1])
        torch.testing.assert_close(alone[0], log_p[row])


@every_model
def test_the_copied_distribution_is_the_watched_attention(name):
    model = make(name)
    with torch.no_grad():
        model.copying.gate.weight.zero_()
        model.copying.gate.bias.fill_(-100.0)  # p_gen = 0: only copies
    with qkv.watch(model) as records:
        p = model(SOURCE, TARGET, LENGTHS).exp()
    weights = records[model.alignment_layers[0]].weights
    assert weights.shape[1] == 1
    for row, length in enumerate(LENGTHS):
        for t in range(TARGET.shape[1]):
            expected = torch.zeros(VOCABULARY, dtype=torch.float64)
            for i in range(int(length)):
                expected[SOURCE[row, i]] += weights[row, 0, t, i]
            torch.testing.assert_close(p[row, t], expected, rtol=1e-9, atol=1e-12)


@every_model
def test_every_parameter_has_a_gradient_equal_to_finite_differences(name):
    model = make(name)

    def loss() -> torch.Tensor:
        return -model(SOURCE, TARGET, LENGTHS)[..., 4:].sum() / 100

    loss().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        index = int(parameter.grad.abs().argmax())
        with torch.no_grad():
            value, losses = parameter.view(-1)[index].item(), []
            for step in (-1e-6, 1e-6):
                parameter.view(-1)[index] = value + step
                losses.append(loss().item())
            parameter.view(-1)[index] = value
        numeric = (losses[1] - losses[0]) / 2e-6
        assert parameter.grad.view(-1)[index].item() == pytest.approx(numeric, rel=1e-4, abs=1e-7), key


def constraints() -> DecodingConstraints:
    return DecodingConstraints(batch=2, begin=2, end=3, max_new_tokens=4, suppress_tokens=(0, 2))


@every_model
def test_beam_search_finds_hypotheses_with_their_log_probabilities(name):
    model = make(name)
    with torch.inference_mode():
        greedy = greedy_search(model, initial_state(model), constraints(), length_penalty=0.0)
        beams = beam_search(model, initial_state(model), constraints(), num_beams=3, length_penalty=0.0)
    for row, hypotheses in enumerate(beams):
        assert hypotheses[0].score >= greedy[row].score - 1e-6
        for best in hypotheses:
            tokens = [2, *best.tokens, 3]
            log_p = model(SOURCE[row : row + 1], torch.tensor([tokens[:-1]]), LENGTHS[row : row + 1])[0]
            total = sum(log_p[t, token].item() for t, token in enumerate(tokens[1:]))
            assert best.score == pytest.approx(total, abs=1e-4)


def test_the_engine_decodes_recurrent_models_and_refuses_the_transformer():
    assert "PyTorch steps" in Engine.build(make("coverage").float()).description
    with pytest.raises(Unsupported, match="copying"):
        Engine.build(make("transformer").float())


@every_model
def test_the_recorded_share_is_the_probability_of_a_copy(name):
    model = make(name)
    with record_copying(model) as records:
        p = model(SOURCE, TARGET, LENGTHS).exp()
    with torch.no_grad():
        model.copying.gate.weight.zero_()
        model.copying.gate.bias.fill_(100.0)  # p_gen = 1: only generates
    generated = model(SOURCE, TARGET, LENGTHS).exp()
    p_gen = p[..., 1:2] / generated[..., 1:2]  # token 1 is not in the source
    (shares,) = records
    torch.testing.assert_close(shares, 1 - p_gen * generated / p)


def test_a_model_without_copying_records_nothing():
    model = make("bahdanau", copying=False)
    with record_copying(model) as records:
        model(SOURCE, TARGET, LENGTHS)
    assert model.copying is None
    assert records == []


def test_coverage_keeps_no_weights_without_copying():
    model = make("coverage", copying=False)
    _, state = model.step(TARGET[:, 0], initial_state(model))
    assert state.memory.source.weights == ()


@pytest.mark.parametrize(
    "options",
    [
        {"copying": True, "target_vocab_size": 10},
        {"copying": True, "decoder": "plain"},
        {"copying": True, "encoder": "pyramid"},
    ],
)
def test_configs_that_cannot_copy_are_rejected(options):
    with pytest.raises(ConfigError, match="copying"):
        RNNSeq2SeqConfig(**{"source_vocab_size": 9, "target_vocab_size": 9} | options)


def test_a_transformer_with_two_vocabularies_cannot_copy():
    with pytest.raises(ConfigError, match="copying"):
        TransformerConfig(source_vocab_size=9, target_vocab_size=8, tie_embeddings=False, copying=True)


def test_the_attention_of_the_transformer_is_one_layer_with_one_head():
    layers = attention_layers(make("transformer"))
    assert isinstance(make("transformer").copying, AttentivePointerGenerator)
    assert layers["copying"].heads == 1


def marked_tokens(generator: torch.Generator, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources of random tokens with token 4 at a random position, and the token that follows it."""
    source = torch.randint(first, last, (32, 6), generator=generator)
    positions = torch.randint(0, 5, (32, 1), generator=generator)
    return source.scatter(1, positions, 4), source.gather(1, positions + 1)[:, 0]


@pytest.mark.parametrize("copying", [True, False])
def test_only_a_model_that_copies_predicts_tokens_it_has_never_seen(copying):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    sizes = {"source_vocab_size": 60, "target_vocab_size": 60, "embedding_dim": 24, "hidden_dim": 24, "max_length": 8}
    model = RNNSeq2Seq(RNNSeq2SeqConfig(**sizes, dropout=0.0, copying=copying))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    begin = torch.full((32, 1), 2)
    for _ in range(250):
        source, expected = marked_tokens(generator, 5, 40)
        loss = torch.nn.functional.cross_entropy(model(source, begin)[:, 0], expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source, expected = marked_tokens(generator, 40, 60)  # never seen in training
    predicted = model.eval()(source, begin)[:, 0].argmax(dim=-1)
    accuracy = (predicted == expected).float().mean().item()
    assert accuracy > 0.8 if copying else accuracy < 0.1

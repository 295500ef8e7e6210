"""Show and tell, and show, attend and tell: equations, gradients, search, saving, and invalid inputs."""

import math
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from qkv.attention import hard, watch
from qkv.config import build, describe_fields
from qkv.datasets.batching import IGNORE
from qkv.errors import InputError, ShapeError
from qkv.generation import DecodingConstraints, beam_search, greedy_search
from qkv.hub.model_folder import load, save_model
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.nn.interfaces import select
from qkv.nn.losses import alignment_loss

VOCABULARY = 9
SMALL = {
    "vocab_size": VOCABULARY, "height": 8, "width": 12, "channels": 2, "encoder": {"name": "cnn", "filters": (4, 8)},
    "feature_dim": 6, "embedding_dim": 5, "hidden_dim": 7,
}  # fmt: skip
TINY = {"encoder": {"name": "cnn", "filters": (2,)}, "height": 4, "width": 2}
KINDS = {
    "soft": {},
    "tell": {"decoder": "tell"},
    "hard": {"align": {"name": "hard", "estimator": "reinforce"}},
    "patches": {"encoder": {"name": "patches", "patch": 4, "layers": 1, "heads": 2}},
    "features": {"encoder": "features"},
}


def make(kind: str = "soft", **changes: object) -> ShowAttendTell:
    torch.manual_seed(0)
    return ShowAttendTell(ShowAttendTellConfig(**SMALL | KINDS[kind] | changes))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 2, 8, 12, generator=generator), torch.randint(VOCABULARY, (3, 5), generator=generator)


def lstm(model: ShowAttendTell, x: list[float], h: list[float], c: list[float]) -> tuple[list[float], list[float]]:
    """One step of an LSTM in plain Python, with PyTorch's order of gates: i, f, g, o."""
    rnn, size = model.decoder.rnn.rnn, len(h)
    w, u, b, d = (parameter.tolist() for parameter in rnn.parameters())
    gates = [b[k] + d[k] + dot(w[k], x) + dot(u[k], h) for k in range(4 * size)]
    after = []
    for k in range(size):
        i, f, g, o = gates[k], gates[size + k], gates[2 * size + k], gates[3 * size + k]
        cell = sigmoid(f) * c[k] + sigmoid(i) * math.tanh(g)
        after.append((sigmoid(o) * math.tanh(cell), cell))
    return [item[0] for item in after], [item[1] for item in after]


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def linear(layer: torch.nn.Linear, x: list[float]) -> list[float]:
    return [dot(row, x) + b for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)]


def additive(model: ShowAttendTell, h: list[float], a: list[float]) -> float:
    """v . tanh(W h + U a)."""
    score = model.decoder.attend.score
    w, u = (list(zip(*weight[0].tolist(), strict=True)) for weight in (score.query_weight, score.key_weight))
    return sum(v * math.tanh(dot(w[k], h) + dot(u[k], a)) for k, v in enumerate(score.vector[0].tolist()))


def test_show_attend_and_tell_matches_its_equations(batch):
    images, target = batch[0][:2].double(), batch[1][:2, :3]
    model = make().double().eval()
    decoder = model.decoder
    logits, weights = model.forward_with_weights(images, target)
    for row in range(2):
        a = model.encoder(images[row : row + 1])[0].tolist()
        mean = [sum(column) / len(a) for column in zip(*a, strict=True)]
        first = [math.tanh(x) for x in linear(decoder.bridge.project, mean)]
        h, c = first[:7], first[7:]
        for t in range(3):
            y = model.embed.weight[target[row, t]].tolist()
            e = [math.exp(additive(model, h, item)) for item in a]
            alpha = [x / sum(e) for x in e]
            gate = sigmoid(linear(decoder.gate, h)[0])
            z = [gate * sum(alpha[i] * a[i][k] for i in range(len(a))) for k in range(6)]
            h, c = lstm(model, y + z, h, c)
            pre_output = [p + q for p, q in zip(y, linear(decoder.pre_output, h + z), strict=True)]
            torch.testing.assert_close(weights[row, t].tolist(), alpha, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(logits[row, t].tolist(), linear(model.readout, pre_output), rtol=1e-9, atol=1e-9)


def test_show_and_tell_matches_its_equations(batch):
    images, target = batch[0][:2].double(), batch[1][:2, :3]
    model = make("tell").double().eval()
    logits = model(images, target)
    for row in range(2):
        a = model.encoder(images[row : row + 1])[0].tolist()
        mean = [sum(column) / len(a) for column in zip(*a, strict=True)]
        h, c = lstm(model, linear(model.decoder.image_proj, mean), [0.0] * 7, [0.0] * 7)
        for t in range(3):
            h, c = lstm(model, model.embed.weight[target[row, t]].tolist(), h, c)
            torch.testing.assert_close(logits[row, t].tolist(), linear(model.readout, h), rtol=1e-9, atol=1e-9)


def test_returned_weights_match_watch(batch):
    model = make().eval()
    with watch(model) as seen:
        _, weights = model.forward_with_weights(*batch)
    assert model.alignment_layers == ("decoder",)
    torch.testing.assert_close(weights, seen["decoder"].weights[:, 0])
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 5))


@pytest.mark.parametrize("kind", ["soft", "tell"])
def test_gradients_match_finite_differences(kind, batch):
    model = make(kind, **TINY).double().eval()
    images, target = batch[0][:2, :, :4, :2].double(), batch[1][:2, :3]

    def loss() -> torch.Tensor:
        logits, weights = model.forward_with_weights(images, target)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten()) + weights.square().sum()

    loss().backward()
    for name, parameter in model.named_parameters():
        position = int(parameter.grad.abs().argmax())
        numbers, grad = parameter.data.view(-1), parameter.grad.view(-1)[position].item()
        before, losses = numbers[position].item(), []
        for step in (1e-5, -1e-5):
            numbers[position] = before + step
            losses.append(loss().item())
        numbers[position] = before
        assert grad == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-5, abs=1e-9), name


def logits_with_draws(
    model: ShowAttendTell, inputs: tuple[torch.Tensor, torch.Tensor], draws: Iterable[int]
) -> torch.Tensor:
    """Logits of a training pass whose hard attention samples the given positions, one per token."""
    remaining = iter(draws)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            hard, "_gumbel_noise", lambda scores: 1e9 * F.one_hot(torch.tensor(next(remaining)), scores.shape[-1])
        )
        return model(*inputs)


def test_expected_gradients_of_hard_attention_match_finite_differences(batch):
    model = make("hard", align={**KINDS["hard"]["align"], "baseline": "learned"}, **TINY, dropout=0.0).double().train()
    weights = [weight for name, weight in model.named_parameters() if "baseline" not in name]
    for weight in weights:
        torch.nn.init.normal_(weight)  # so that a sample affects all later steps
    inputs, target = (batch[0][:1, :, :4, :2].double(), batch[1][:1, :3]), batch[1][:1, 1:4]

    def losses() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For all position sequences z of three tokens: p(z), the loss, and the estimator's term."""
        for draws in product(range(2), repeat=3):
            logits = logits_with_draws(model, inputs, draws)
            p = sum(draw.log_probability.sum() for draw in model.decoder.attend.align._draws).exp()
            yield p.detach(), F.cross_entropy(logits[0], target[0]), alignment_loss(model, logits, target, IGNORE)

    sum(p * (loss + reward) for p, loss, reward in losses()).backward()
    for _ in range(2):
        directions, expected = [torch.randn_like(weight) for weight in weights], []
        for step in (1e-5, -2e-5):
            for weight, direction in zip(weights, directions, strict=True):
                weight.data.add_(direction, alpha=step)
            expected.append(sum((p * loss).item() for p, loss, _ in losses()))
        for weight, direction in zip(weights, directions, strict=True):
            weight.data.add_(direction, alpha=1e-5)
        grad = sum(
            float((weight.grad * direction).sum()) for weight, direction in zip(weights, directions, strict=True)
        )
        assert grad == pytest.approx((expected[0] - expected[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_match_teacher_forcing_and_states_can_be_selected(kind, batch):
    model = make(kind).eval()
    images, target = batch
    full = model(images, target)
    state = model.init_state(model.encode(images))
    for t in range(5):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, full[:, t], rtol=0, atol=1e-5)
        if t == 1:
            rows = torch.tensor([2, 0, 0])
            again, _ = model.step(target[rows, 2], select(state, rows))
            torch.testing.assert_close(again, full[rows, 2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_gets_a_gradient_also_under_autocast(kind, batch):
    images, target = batch
    for precision in (torch.float32, torch.bfloat16):
        model = make(kind).train()
        with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
            logits, weights = model.forward_with_weights(images, target)
            loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten()) + weights.float().square().sum()
        if kind == "hard":
            loss = loss + model.decoder.attend.align.loss(-loss.detach().expand(3)).loss
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


def test_an_exhaustive_beam_finds_the_most_probable_caption(batch):
    """Compare with an enumeration of all captions of at most two tokens."""
    model = make().eval()
    images, end = batch[0], 3
    rules = DecodingConstraints(batch=3, begin=2, end=end, max_new_tokens=2)
    state = model.init_state(model.encode(images))
    actual = beam_search(model, state, rules, num_beams=60, length_penalty=0.0, exact=True)
    greedy = greedy_search(model, state, rules, length_penalty=0.0)
    others = [token for token in range(VOCABULARY) if token != end]
    full = [(), *((a,) for a in others), *((a, b) for a in others for b in others)]
    inputs = torch.tensor([[2, *tokens, *[end] * (2 - len(tokens))] for tokens in full])
    for row in range(3):
        with torch.no_grad():
            log_p = model(images[row : row + 1].expand(len(full), -1, -1, -1), inputs).log_softmax(dim=-1).tolist()
        scores = {
            tokens: sum(log_p[number][t][token] for t, token in enumerate((*tokens, end)))
            for number, tokens in enumerate(full)
        }
        best = max(scores, key=scores.__getitem__)
        assert actual[row][0].tokens == best
        assert actual[row][0].score == pytest.approx(scores[best], abs=1e-4)
        assert greedy[row].score <= actual[row][0].score + 1e-5


def test_hard_attention_selects_one_position_except_for_the_soft_fraction(batch):
    expected = make(dropout=0.0)
    for share in (0.0, 0.5, 1.0):
        model = make("hard", dropout=0.0, soft_fraction=share).train()
        model.load_state_dict(expected.state_dict(), strict=False)
        torch.manual_seed(3)
        logits, weights = model.forward_with_weights(batch[0].repeat(8, 1, 1, 1), batch[1].repeat(8, 1))
        single = (weights == 1).any(dim=-1).all(dim=-1)
        assert single.float().mean() == pytest.approx(1 - share, abs=0.25 if share == 0.5 else 0)
        if share == 1.0:
            torch.testing.assert_close(logits[:3], expected(*batch))
        _, weights = model.eval().forward_with_weights(*batch)
        assert (weights == 1).any(dim=-1).all()


def test_a_frozen_encoder_gets_no_gradient(batch):
    model = make(frozen=True).train()
    F.cross_entropy(model(*batch).flatten(0, 1), batch[1].flatten()).backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    assert model.embed.weight.grad is not None


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_saved_and_loaded_bit_for_bit(kind, batch, tmp_path: Path):
    model = make(kind).eval()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again(*batch).equal(model(*batch))


@pytest.mark.parametrize("kind", ["soft", "tell", "hard"])
def test_it_overfits_eight_pictures(kind):
    model = make(kind, dropout=0.0, hidden_dim=32, feature_dim=16).train()
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(8, 2, 8, 12, generator=generator)
    target = torch.randint(4, VOCABULARY, (8, 6), generator=generator)
    decoder_input = torch.cat((torch.full((8, 1), 2), target[:, :-1]), dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(100):
        optimizer.zero_grad()
        logits = model(images, decoder_input)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        reward = alignment_loss(model, logits, target, IGNORE)
        (loss if reward is None else loss + reward).backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert model.eval()(images, decoder_input).argmax(-1).equal(target)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"align": "sot"}, "align: unknown align 'sot' .did you mean soft"),
        ({"decoder": "atend"}, r"decoder = 'atend' \(did you mean attend\?\)"),
        ({"encoder": "vit"}, "encoder: unknown image_encoder 'vit'"),
        ({"height": 66}, "height 66 must be a multiple of 8"),
        ({"encoder": "patches", "width": 60}, "width 60 must be a multiple of 8"),
        ({"encoder": "patches", "feature_dim": 126}, "feature_dim 126 must be divisible by encoder.heads 4"),
        ({"encoder": {"name": "cnn", "patch": 4}}, "unknown key encoder.patch"),
        ({"encoder": {"name": "cnn", "filters": ()}}, "encoder.filters must be a list of at least 1"),
        ({"encoder": {"name": "cnn", "filters": (8,) * 9}}, "encoder.filters must be a list of at most 8"),
        ({"encoder": {"name": "cnn", "filters": (0,)}}, "encoder.filters must be between 1 and 4,096"),
        ({"decoder": "tell", "score": "dot"}, "score does not apply to decoder = 'tell'"),
        ({"decoder": "tell", "doubly_stochastic": 1.0}, "doubly_stochastic does not apply to decoder = 'tell'"),
        ({"align": "hard", "soft_fraction": 0.5}, "soft_fraction applies to hard attention"),
        ({"align": "hard", "doubly_stochastic": 0.5}, "doubly_stochastic applies to soft attention only"),
        ({"align": "local_m"}, "align 'local_m' does not apply"),
        ({"score": "dot"}, "score.*Bilinear"),
        ({"height": 2048, "width": 2048}, ".*65,536 positions"),
        ({"doubly_stochastic": math.nan}, "doubly_stochastic must be"),
        ({"vocab_size": 0}, "vocab_size must be"),
        ({"vocab_size": 2**20, "hidden_dim": 2**20, "feature_dim": 2**20}, ".*too large"),
    ],
)
def test_invalid_configs_raise(changes, words):
    with pytest.raises(InputError, match=f"^{words}"):
        ShowAttendTellConfig(**changes)


def test_a_config_is_complete_and_restored_from_its_data():
    config = ShowAttendTellConfig(**KINDS["patches"] | KINDS["hard"])
    assert build(ShowAttendTellConfig, config.to_dict(), "here") == config
    assert set(describe_fields(ShowAttendTellConfig)) == set(ShowAttendTellConfig.model_fields)


def test_the_backend_reaches_the_attention_layer():
    assert make(backend="reference").decoder.attend.backend == "reference"


def test_an_image_of_another_size_raises(batch):
    with pytest.raises(ShapeError, match=r"\[batch, 2, 8, 12\]"):
        make()(batch[0][:, :, :, :8], batch[1])

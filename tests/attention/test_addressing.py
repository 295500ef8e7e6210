"""Neural Turing machine addressing against hand-written loops."""

import itertools

import pytest
import torch
from torch import Tensor

from qkv.attention import Cosine, Dense, Dot, Padding, attend
from qkv.attention.addressing import Addressing
from qkv.errors import ShapeError

ROWS, KEYS = (2, 2, 3), 5


def example(reach: int = 1, keys: int = KEYS) -> Addressing:
    return Addressing(
        previous=torch.randn(*ROWS, keys, dtype=torch.float64).softmax(dim=-1),
        gate=torch.rand(ROWS, dtype=torch.float64),
        shift=torch.randn(*ROWS, 2 * reach + 1, dtype=torch.float64).softmax(dim=-1),
        sharpening=1 + 3 * torch.rand(ROWS, dtype=torch.float64),
        strength=5 * torch.rand(ROWS, dtype=torch.float64),
    )


def memory(keys: int = KEYS) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, 2, n, 4, dtype=torch.float64) for n in (ROWS[-1], keys, keys))


def by_hand(scores: Tensor, align: Addressing, allowed: Tensor) -> Tensor:
    """The four equations with loops and scalars, one query at a time."""
    weights = torch.zeros_like(scores)
    keys, reach = scores.shape[-1], align.shift.shape[-1] // 2
    for row in itertools.product(*(range(n) for n in scores.shape[:3])):
        visible = [k for k in range(keys) if allowed[row][k]]
        content = [0.0] * keys
        total = sum((align.strength[row] * scores[row][k]).exp() for k in visible)
        for k in visible:
            content[k] = (align.strength[row] * scores[row][k]).exp() / total
        gated = [align.gate[row] * content[k] + (1 - align.gate[row]) * align.previous[row][k] for k in range(keys)]
        shifted = [0.0] * keys
        for k, offset in itertools.product(range(keys), range(-reach, reach + 1)):
            shifted[(k + offset) % keys] += gated[k] * align.shift[row][offset + reach]
        powers = {k: shifted[k] ** align.sharpening[row] for k in visible}
        for k in visible:
            weights[row][k] = powers[k] / sum(powers.values())
    return weights


@pytest.mark.parametrize("keys", [1, 2, 5])
@pytest.mark.parametrize("reach", [0, 1, 2])
@pytest.mark.parametrize("mask_name", ["none", "ragged", "gaps"])
def test_weights_match_the_equations(mask_name, reach, keys):
    torch.manual_seed(0)
    align, (query, key, value) = example(reach, keys), memory(keys)
    lengths, gaps = torch.tensor([keys, keys // 2]), torch.rand(*ROWS, keys) > 0.3
    mask = {"none": None, "ragged": Padding(lengths), "gaps": Dense(gaps)}[mask_name]
    allowed = {
        "none": torch.ones(*ROWS, keys).bool(),
        "ragged": (torch.arange(keys) < lengths[:, None, None, None]).expand(*ROWS, keys),
        "gaps": gaps,
    }[mask_name]
    score = Cosine().double().requires_grad_(False)
    actual = attend(query, key, value, score=score, align=align, mask=mask, need_weights=True)
    cosine = torch.nn.functional.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)
    expected = by_hand(cosine, align, allowed)
    torch.testing.assert_close(actual.weights, expected)
    torch.testing.assert_close(actual.output, expected @ value)


def one_hot_shift(offset: int, reach: int = 1) -> Tensor:
    shift = torch.zeros(*ROWS, 2 * reach + 1, dtype=torch.float64)
    shift[..., reach + offset] = 1.0
    return shift


def test_content_addressing_without_shift_or_sharpening_is_softmax():
    torch.manual_seed(0)
    one = torch.ones(ROWS, dtype=torch.float64)
    align = Addressing(example().previous, gate=one, shift=one_hot_shift(0), sharpening=one)
    inputs = memory()
    torch.testing.assert_close(attend(*inputs, align=align).output, attend(*inputs).output)


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_a_closed_gate_shifts_the_previous_weights(offset):
    torch.manual_seed(0)
    one = torch.ones(ROWS, dtype=torch.float64)
    previous = example().previous
    align = Addressing(previous, gate=0 * one, shift=one_hot_shift(offset, reach=2), sharpening=one)
    weights = attend(*memory(), align=align, need_weights=True).weights
    torch.testing.assert_close(weights, previous.roll(offset, dims=-1))


def test_strength_multiplies_the_score():
    torch.manual_seed(0)
    one, inputs = torch.ones(ROWS, dtype=torch.float64), memory()
    twice = Addressing(example().previous, one, one_hot_shift(0), one, strength=2 * one)
    expected = attend(2 * inputs[0], *inputs[1:], score=Dot()).output
    torch.testing.assert_close(attend(*inputs, score=Dot(), align=twice).output, expected)


def test_zero_strength_is_uniform_over_unmasked_keys():
    torch.manual_seed(0)
    one, previous = torch.ones(ROWS, dtype=torch.float64), torch.zeros(*ROWS, KEYS, dtype=torch.float64)
    previous[..., 0] = 1.0
    align = Addressing(previous, 0.5 * one, one_hot_shift(0), one, strength=0 * one)
    weights = attend(*memory(), align=align, mask=Padding(torch.tensor([5, 2])), need_weights=True).weights
    assert weights[0, 0, 0].tolist() == pytest.approx([0.6, 0.1, 0.1, 0.1, 0.1])
    assert weights[1, 0, 0].tolist() == pytest.approx([0.75, 0.25, 0, 0, 0])


def test_sharpening_does_not_underflow():
    torch.manual_seed(0)
    keys, one = 1000, torch.ones(ROWS)
    previous = torch.randn(*ROWS, keys).softmax(dim=-1)  # all below 0.1: their 100th powers underflow in float32
    query, key = torch.randn(2, 2, 3, 4), torch.randn(2, 2, keys, 4)
    for gamma in (1.0, 10.0, 100.0):
        align = Addressing(previous, 0 * one, one_hot_shift(0).float(), gamma * one)
        weights = attend(query, key, key, align=align, need_weights=True).weights
        torch.testing.assert_close(weights.sum(-1), one)
        exact = (gamma * previous.double().log()).softmax(dim=-1)
        torch.testing.assert_close(weights.double(), exact, rtol=1e-3, atol=1e-6)


def test_gradcheck_of_all_controller_outputs():
    torch.manual_seed(0)
    controls = [value.requires_grad_() for value in vars(example()).values()]
    inputs = [tensor.requires_grad_() for tensor in memory()]

    def output(query, key, value, *controls):
        mask = Padding(torch.tensor([5, 3]))
        return attend(query, key, value, align=Addressing(*controls), mask=mask).output

    assert torch.autograd.gradcheck(output, (*inputs, *controls), fast_mode=True)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0, 7.3])
def test_a_weight_of_zero_has_a_finite_gradient(gamma):
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    controls = [
        torch.tensor([[[[0.0, 0.7, 0.3, 0.0]]]], dtype=torch.float64),
        0 * one,
        torch.tensor([[[[0.0, 1.0, 0.0]]]], dtype=torch.float64),
        gamma * one,
        one,
    ]
    for tensor in controls:
        tensor.requires_grad_()
    x = torch.randn(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)
    result = attend(x[:, :, :1], x, torch.eye(4, dtype=torch.float64).view(1, 1, 4, 4), align=Addressing(*controls))
    coefficients = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    grads = torch.autograd.grad((result.output * coefficients).sum(), [*controls, x])
    assert all(grad.isfinite().all() for grad in grads)
    # d sum a_i w_i / d gamma over the two keys with non-zero weight
    p, q = 0.7**gamma, 0.3**gamma
    expected = (2 - 4) * p * q / (p + q) ** 2 * (torch.tensor(0.7 / 0.3, dtype=torch.float64).log())
    torch.testing.assert_close(grads[3].squeeze(), expected)


@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_weights_shifted_onto_masked_keys_give_zeros_and_finite_gradients(gamma):
    one = torch.ones(1, 1, 1)
    previous = torch.tensor([[[[0.0, 1.0, 0.0]]]], requires_grad=True)
    align = Addressing(previous, 0 * one, torch.tensor([[[[0.0, 0.0, 1.0]]]]), gamma * one)
    x = torch.randn(1, 1, 3, 2)
    output = attend(x[:, :, :1], x, x, align=align, mask=Padding(torch.tensor([2]))).output
    assert (output == 0).all()
    assert torch.autograd.grad(output.sum(), previous)[0].isfinite().all()


@pytest.mark.usefixtures("unchecked")
class TestWrongShapes:
    """Incompatible shapes raise."""

    @pytest.mark.parametrize("name", ["sharpening", "strength"])
    def test_scalars_need_one_value_per_query(self, name):
        with pytest.raises(ShapeError, match=name):
            Addressing(**vars(example()) | {name: torch.ones(2, 2)})

    @pytest.mark.parametrize("shape", [(*ROWS, 4), (2, 2, 3), (2, 2, 1, 3)])
    def test_the_number_of_shifts_must_be_odd(self, shape):
        with pytest.raises(ShapeError, match="shift"):
            Addressing(**vars(example()) | {"shift": torch.ones(shape)})

    def test_previous_weights_need_the_same_queries(self):
        with pytest.raises(ShapeError, match="previous"):
            Addressing(**vars(example()) | {"previous": torch.ones(2, 2, 1, KEYS)})

    def test_the_memory_size_must_not_change(self):
        with pytest.raises(ShapeError, match="memory"):
            attend(*memory(6), align=example())

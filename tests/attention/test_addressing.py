"""The addressing of a neural Turing machine, against loops written out by hand."""

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
        seen = [k for k in range(keys) if allowed[row][k]]
        content = [0.0] * keys
        total = sum((align.strength[row] * scores[row][k]).exp() for k in seen)
        for k in seen:
            content[k] = (align.strength[row] * scores[row][k]).exp() / total
        gated = [align.gate[row] * content[k] + (1 - align.gate[row]) * align.previous[row][k] for k in range(keys)]
        moved = [0.0] * keys
        for k, offset in itertools.product(range(keys), range(-reach, reach + 1)):
            moved[(k + offset) % keys] += gated[k] * align.shift[row][offset + reach]
        powers = {k: moved[k] ** align.sharpening[row] for k in seen}
        for k in seen:
            weights[row][k] = powers[k] / sum(powers.values())
    return weights


@pytest.mark.parametrize("keys", [1, 2, 5])
@pytest.mark.parametrize("reach", [0, 1, 2])
@pytest.mark.parametrize("masked", ["whole", "ragged", "with holes"])
def test_weights_are_those_of_the_equations(masked, reach, keys):
    torch.manual_seed(0)
    align, (query, key, value) = example(reach, keys), memory(keys)
    lengths, holes = torch.tensor([keys, keys // 2]), torch.rand(*ROWS, keys) > 0.3
    mask = {"whole": None, "ragged": Padding(lengths), "with holes": Dense(holes)}[masked]
    allowed = {
        "whole": torch.ones(*ROWS, keys).bool(),
        "ragged": (torch.arange(keys) < lengths[:, None, None, None]).expand(*ROWS, keys),
        "with holes": holes,
    }[masked]
    score = Cosine().double().requires_grad_(False)
    found = attend(query, key, value, score=score, align=align, mask=mask, need_weights=True)
    cosine = torch.nn.functional.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)
    expected = by_hand(cosine, align, allowed)
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.output, expected @ value)


def one_hot_shift(place: int, reach: int = 1) -> Tensor:
    shift = torch.zeros(*ROWS, 2 * reach + 1, dtype=torch.float64)
    shift[..., reach + place] = 1.0
    return shift


def test_all_by_content_without_shift_or_sharpening_is_softmax():
    torch.manual_seed(0)
    one = torch.ones(ROWS, dtype=torch.float64)
    align = Addressing(example().previous, gate=one, shift=one_hot_shift(0), sharpening=one)
    inputs = memory()
    torch.testing.assert_close(attend(*inputs, align=align).output, attend(*inputs).output)


@pytest.mark.parametrize("places", [-2, -1, 0, 1, 2])
def test_a_closed_gate_moves_the_weights_of_the_step_before(places):
    torch.manual_seed(0)
    one = torch.ones(ROWS, dtype=torch.float64)
    previous = example().previous
    align = Addressing(previous, gate=0 * one, shift=one_hot_shift(places, reach=2), sharpening=one)
    weights = attend(*memory(), align=align, need_weights=True).weights
    torch.testing.assert_close(weights, previous.roll(places, dims=-1))


def test_strength_multiplies_the_score():
    torch.manual_seed(0)
    one, inputs = torch.ones(ROWS, dtype=torch.float64), memory()
    twice = Addressing(example().previous, one, one_hot_shift(0), one, strength=2 * one)
    expected = attend(2 * inputs[0], *inputs[1:], score=Dot()).output
    torch.testing.assert_close(attend(*inputs, score=Dot(), align=twice).output, expected)


def test_a_strength_of_zero_shares_out_evenly_and_only_what_may_be_seen():
    torch.manual_seed(0)
    one, previous = torch.ones(ROWS, dtype=torch.float64), torch.zeros(*ROWS, KEYS, dtype=torch.float64)
    previous[..., 0] = 1.0
    align = Addressing(previous, 0.5 * one, one_hot_shift(0), one, strength=0 * one)
    weights = attend(*memory(), align=align, mask=Padding(torch.tensor([5, 2])), need_weights=True).weights
    assert weights[0, 0, 0].tolist() == pytest.approx([0.6, 0.1, 0.1, 0.1, 0.1])
    assert weights[1, 0, 0].tolist() == pytest.approx([0.75, 0.25, 0, 0, 0])


def test_sharpening_gathers_the_weights_and_never_loses_them():
    torch.manual_seed(0)
    keys, one = 1000, torch.ones(ROWS)
    previous = torch.randn(*ROWS, keys).softmax(dim=-1)  # all below 0.1: their 100th powers are 0 in float32
    query, key = torch.randn(2, 2, 3, 4), torch.randn(2, 2, keys, 4)
    for gamma in (1.0, 10.0, 100.0):
        align = Addressing(previous, 0 * one, one_hot_shift(0).float(), gamma * one)
        weights = attend(query, key, key, align=align, need_weights=True).weights
        torch.testing.assert_close(weights.sum(-1), one)
        exact = (gamma * previous.double().log()).softmax(dim=-1)
        torch.testing.assert_close(weights.double(), exact, rtol=1e-3, atol=1e-6)


def test_gradients_reach_everything_the_controller_says():
    torch.manual_seed(0)
    given = [value.requires_grad_() for value in vars(example()).values()]
    inputs = [tensor.requires_grad_() for tensor in memory()]

    def output(query, key, value, *said):
        mask = Padding(torch.tensor([5, 3]))
        return attend(query, key, value, align=Addressing(*said), mask=mask).output

    assert torch.autograd.gradcheck(output, (*inputs, *given), fast_mode=True)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0, 7.3])
def test_a_weight_of_zero_has_a_finite_gradient(gamma):
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    said = [
        torch.tensor([[[[0.0, 0.7, 0.3, 0.0]]]], dtype=torch.float64),
        0 * one,
        torch.tensor([[[[0.0, 1.0, 0.0]]]], dtype=torch.float64),
        gamma * one,
        one,
    ]
    for tensor in said:
        tensor.requires_grad_()
    x = torch.randn(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)
    read = attend(x[:, :, :1], x, torch.eye(4, dtype=torch.float64).view(1, 1, 4, 4), align=Addressing(*said))
    aims = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    slopes = torch.autograd.grad((read.output * aims).sum(), [*said, x])
    assert all(slope.isfinite().all() for slope in slopes)
    # d sum a_i w_i / d gamma, by hand, over the two keys that have weight
    p, q = 0.7**gamma, 0.3**gamma
    expected = (2 - 4) * p * q / (p + q) ** 2 * (torch.tensor(0.7 / 0.3, dtype=torch.float64).log())
    torch.testing.assert_close(slopes[3].squeeze(), expected)


@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_where_all_weight_was_moved_onto_forbidden_keys_it_reads_zeros_with_finite_gradients(gamma):
    one = torch.ones(1, 1, 1)
    previous = torch.tensor([[[[0.0, 1.0, 0.0]]]], requires_grad=True)
    align = Addressing(previous, 0 * one, torch.tensor([[[[0.0, 0.0, 1.0]]]]), gamma * one)
    x = torch.randn(1, 1, 3, 2)
    output = attend(x[:, :, :1], x, x, align=align, mask=Padding(torch.tensor([2]))).output
    assert (output == 0).all()
    assert torch.autograd.grad(output.sum(), previous)[0].isfinite().all()


@pytest.mark.usefixtures("unchecked")
class TestWrongShapes:
    """What does not fit is refused in words."""

    @pytest.mark.parametrize("name", ["sharpening", "strength"])
    def test_there_is_one_number_for_each_query(self, name):
        with pytest.raises(ShapeError, match=rf"one {name} for each \[batch, heads, query\]"):
            Addressing(**vars(example()) | {name: torch.ones(2, 2)})

    @pytest.mark.parametrize("shape", [(*ROWS, 4), (2, 2, 3), (2, 2, 1, 3)])
    def test_shifts_are_an_odd_number(self, shape):
        with pytest.raises(ShapeError, match=r"2 r \+ 1"):
            Addressing(**vars(example()) | {"shift": torch.ones(shape)})

    def test_there_were_as_many_queries_before(self):
        with pytest.raises(ShapeError, match="weights of the step before"):
            Addressing(**vars(example()) | {"previous": torch.ones(2, 2, 1, KEYS)})

    def test_the_memory_keeps_its_size(self):
        with pytest.raises(ShapeError, match="the memory must keep its size"):
            attend(*memory(6), align=example())

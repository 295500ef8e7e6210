"""What claims measure: costs, paths in autograd graphs, and the layers and formulas that they compare."""

import pytest
import torch

from qkv.attention import Hard, Sinusoidal, Window, attend
from qkv.experiments.claims import cost
from qkv.experiments.claims.alignment.hard_attention_variance import estimates
from qkv.experiments.claims.complexity.layers import LAYERS, RADIUS, build_layer, local_attention
from qkv.experiments.claims.positions.offset_is_rotation import DIM, best_map, relative_error, rotation
from qkv.experiments.claims.recurrence.gradients import gradient_norms
from qkv.experiments.claims.scores.scaled_dot_variance import jacobian_norm

CPU = torch.device("cpu")


def test_multiply_adds_of_a_matrix_product():
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert cost.multiply_adds(lambda: a @ b) == 3 * 5 * 7


def test_seconds_are_those_of_the_fastest_round():
    small, large = torch.randn(8, 8), torch.randn(512, 512)
    times = cost.seconds({"small": lambda: small @ small, "large": lambda: large @ large}, CPU)
    assert 0 < times["small"] < times["large"]


def test_threads_are_restored():
    before = torch.get_num_threads()
    with cost.threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_paths_in_an_autograd_graph():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    chain = x
    for _ in range(5):
        chain = chain.sin()
    total = chain + y + x.cos()
    assert cost.longest_path(total) == 8  # two sums, five sines and the leaf
    assert cost.shortest_path(total, x) == 2  # the last sum and the cosine
    assert cost.shortest_path(total, y) == 2
    with pytest.raises(ValueError, match="depend"):
        cost.shortest_path(chain, y)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_the_shape_of_its_input(name):
    x = torch.randn(2, 2 * RADIUS, 8)
    assert build_layer(name, x.shape[1], 8, CPU)(x).shape == x.shape


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_local_attention_equals_attention_with_a_window(blocks):
    x = torch.randn(2, blocks * RADIUS, 8, dtype=torch.float64)
    full = attend(x[:, None], x[:, None], x[:, None], mask=Window(RADIUS, RADIUS), backend="reference").output
    torch.testing.assert_close(local_attention(x, backend="reference"), full[:, 0])


def test_jacobian_norm_equals_that_of_autograd():
    scores = torch.randn(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=0), scores)
    torch.testing.assert_close(jacobian_norm(scores.softmax(dim=0)[None])[0], jacobian.norm())


def test_a_rotation_is_orthogonal_and_moves_sinusoids():
    matrix = rotation(3, CPU)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(DIM, dtype=torch.float64))
    encoding = Sinusoidal(DIM).double()(200)
    assert relative_error(encoding, 3, matrix) < 1e-12
    assert relative_error(encoding, 3, best_map(encoding, 3)) < 1e-6
    assert relative_error(encoding, 4, matrix) > 0.01


@pytest.mark.parametrize("baseline", [None, "moving-average"])
def test_estimates_have_the_exact_mean(baseline):
    torch.manual_seed(0)
    scores, rewards = torch.randn(2, 4, dtype=torch.float64)
    align = Hard("reinforce", baseline=baseline)
    grads = estimates(align, scores, rewards, 40_000)
    p = scores.softmax(dim=0)
    error = (grads.mean(dim=0) - p * (rewards - p @ rewards)).abs()
    assert (error <= 4 * grads.std(dim=0) / 200).all()


def test_gradient_norms_of_a_known_recurrence():
    def decay(x):
        state = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            state = 0.5 * state + step
        return state

    norms = gradient_norms(decay, 4, CPU)
    assert norms[8] / norms[4] == pytest.approx(0.5**4)
    assert norms[1] == pytest.approx(0.5)

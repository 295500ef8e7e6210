"""Alignments against loops and closed forms, and properties of all of them."""

import itertools
import math
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.attention import Additive, Align, Causal, Dense, Dot, Padding, Softmax, attend, watch
from qkv.attention.addressing import Addressing
from qkv.attention.align import LinearStart, LocalMonotonic, LocalPredictive
from qkv.attention.backends import BACKENDS
from qkv.attention.hard import Hard
from qkv.attention.operator import Attend, build_request
from qkv.attention.sparse import Entmax, Sparsemax, entmax
from qkv.errors import InputError, ShapeError

DIM = 3
DOT = Dot()


def addressing(batch: int, heads: int, queries: int, keys: int) -> Addressing:
    rows = (batch, heads, queries)
    return Addressing(
        previous=torch.rand(*rows, keys).softmax(dim=-1),
        gate=torch.rand(rows),
        shift=torch.rand(*rows, 3).softmax(dim=-1),
        sharpening=1 + torch.rand(rows),
        strength=3 * torch.rand(rows),
    )


ALIGNS = {
    "local-m": lambda *sizes: LocalMonotonic(1),
    "local-p": lambda *sizes: LocalPredictive(DIM, 2),
    "sparsemax": lambda *sizes: Sparsemax(),
    "entmax 1.5": lambda *sizes: Entmax(),
    "entmax 1.2": lambda *sizes: Entmax(1.2),
    "entmax 3": lambda *sizes: Entmax(3.0),
    "hard": lambda *sizes: Hard(),
    "hard, in evaluation": lambda *sizes: Hard().eval(),
    "hard, gumbel": lambda *sizes: Hard("gumbel", temperature=0.5),
    "hard, reinforce": lambda *sizes: Hard("reinforce"),
    "addressing": addressing,
}


def terms(batch: int, heads: int, queries: int, keys: int) -> list[Tensor]:
    return [torch.randn(batch, heads, n, DIM, dtype=torch.float64, requires_grad=True) for n in (queries, keys, keys)]


def in_float64(align: Align) -> Align:
    if isinstance(align, Addressing):
        return Addressing(*(value.double() for value in vars(align).values()))
    return align.double() if isinstance(align, torch.nn.Module) else align


def in_bfloat16(align: Align) -> Align:
    if isinstance(align, Addressing):
        return Addressing(*(value.bfloat16() for value in vars(align).values()))
    return align.bfloat16() if isinstance(align, torch.nn.Module) else align


class TestEveryAlignment:
    """Properties of all alignments."""

    @pytest.mark.parametrize("name", ALIGNS)
    @settings(max_examples=5, deadline=None)
    @given(
        batch=st.integers(1, 2), heads=st.integers(1, 2), queries=st.integers(1, 3), keys=st.integers(1, 5),
        seed=st.integers(0, 2**16),
    )  # fmt: skip
    def test_weights_are_a_distribution_over_the_unmasked_keys(self, name, batch, heads, queries, keys, seed):
        torch.manual_seed(seed)
        sizes = (batch, heads, queries, keys)
        mask = Padding(torch.randint(0, keys + 1, (batch,))) & Dense(torch.rand(batch, 1, queries, keys) > 0.2)
        inputs = terms(*sizes)
        align = in_float64(ALIGNS[name](*sizes))
        result = attend(*inputs, align=align, mask=mask, backend="reference", need_weights=True)
        allowed = mask.to_dense(build_request(*inputs).shape).expand(sizes)
        assert (result.weights >= 0).all()
        assert (result.weights[~allowed] == 0).all()
        total = result.weights.sum(dim=-1)
        if name == "local-p":
            assert (total <= 1 + 1e-12).all()
        else:
            within = (torch.arange(queries)[:, None] - torch.arange(keys)).abs() <= (
                1 if name == "local-m" else queries + keys
            )
            torch.testing.assert_close(total, (allowed & within).any(dim=-1).double())
        if result.output.requires_grad:
            grads = torch.autograd.grad(result.output.sin().sum(), inputs, allow_unused=True, materialize_grads=True)
            assert all(grad.isfinite().all() for grad in grads)
            assert (grads[0][~allowed.any(dim=-1)] == 0).all()

    @pytest.mark.parametrize("name", ALIGNS)
    def test_fully_masked_queries_have_zero_output_and_gradient(self, name):
        torch.manual_seed(0)
        inputs = [tensor.detach().float().requires_grad_() for tensor in terms(2, 2, 3, 4)]
        align = ALIGNS[name](2, 2, 3, 4)
        output = attend(*inputs, align=align, mask=Padding(torch.tensor([0, 3])), backend="reference").output
        assert (output[0] == 0).all()
        assert (output[1] != 0).any()
        for grad in torch.autograd.grad(output.sin().sum(), inputs, allow_unused=True, materialize_grads=True):
            assert grad.isfinite().all()
            assert (grad[0] == 0).all()

    @pytest.mark.parametrize("name", [name for name in ALIGNS if not name.startswith("hard")])
    def test_gradcheck(self, name):
        torch.manual_seed(3)
        align = in_float64(ALIGNS[name](2, 1, 2, 4))
        learned = list(align.parameters()) if isinstance(align, torch.nn.Module) else []
        mask = Padding(torch.tensor([4, 2])) | Causal()
        assert torch.autograd.gradcheck(
            lambda q, k, v, *_: attend(q, k, v, align=align, mask=mask, backend="reference").output,
            (*terms(2, 1, 2, 4), *learned),
        )

    @pytest.mark.parametrize("name", [name for name in ALIGNS if name not in ("hard, gumbel", "hard, reinforce")])
    def test_low_precision_is_close_to_float64(self, name):
        torch.manual_seed(1)
        # Keys are unit vectors, so the scores are the queries, exact in bfloat16: only the alignment rounds.
        query = (4 * torch.randn(2, 2, 3, 5)).bfloat16()
        eye = torch.eye(5).expand(2, 2, 5, 5).bfloat16()
        align = in_bfloat16(LocalPredictive(5, 2) if name == "local-p" else ALIGNS[name](2, 2, 3, 5))
        low = attend(query, eye, eye, score=DOT, align=align, backend="reference").output
        exact = (tensor.double() for tensor in (query, eye, eye))
        truth = attend(*exact, score=DOT, align=in_float64(align), backend="reference").output
        assert low.dtype == torch.bfloat16
        torch.testing.assert_close(low.double(), truth, rtol=0, atol=8 * torch.finfo(torch.bfloat16).eps)

    @pytest.mark.parametrize("name", ["sparsemax", "entmax 1.5", "local-p", "addressing", "hard"])
    def test_fused_kernels_reject_non_softmax_alignments(self, name):
        x = torch.randn(1, 1, 3, DIM)
        request = build_request(x, x, x, align=ALIGNS[name](1, 1, 3, 3))
        assert "is not a softmax" in BACKENDS["sdpa"].supports(request)


class TestLocalMonotonic:
    """Softmax within a window around the time step."""

    @pytest.mark.parametrize("start", [None, 0, 2, 9, torch.tensor(1), torch.tensor([0, 3])], ids=str)
    @pytest.mark.parametrize("mask", [None, Padding(torch.tensor([6, 2]))], ids=["full", "ragged"])
    @pytest.mark.parametrize("backend", ["sdpa", "reference"])
    def test_softmax_over_the_keys_near_the_time_step(self, backend, mask, start):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 2, n, 4, dtype=torch.float64) for n in (3, 6, 6)]
        result = attend(*inputs, align=LocalMonotonic(2), mask=mask, start=start, backend=backend, need_weights=True)
        scores = inputs[0] @ inputs[1].transpose(-1, -2) / 2
        expected = torch.zeros(2, 2, 3, 6, dtype=torch.float64)
        for b, h, q in itertools.product(range(2), range(2), range(3)):
            first = 0 if start is None else int(torch.as_tensor(start).expand(2)[b])
            length = 6 if mask is None else int(mask.lengths[b])
            near = [k for k in range(length) if abs(k - (first + q)) <= 2]
            if near:
                expected[b, h, q, near] = scores[b, h, q, near].softmax(dim=0)
        torch.testing.assert_close(result.weights, expected)
        torch.testing.assert_close(result.output, expected @ inputs[2])

    def test_decoding_step_by_step_matches_one_call(self):
        query, key = torch.randn(1, 1, 4, 3), torch.randn(1, 1, 7, 3)
        full = attend(query, key, key, align=LocalMonotonic(1)).output
        steps = [attend(query[:, :, [t]], key, key, align=LocalMonotonic(1), start=t).output for t in range(4)]
        torch.testing.assert_close(torch.cat(steps, dim=2), full)

    def test_sdpa_supports_it(self):
        x = torch.randn(1, 1, 3, 4)
        assert BACKENDS["sdpa"].supports(build_request(x, x, x, align=LocalMonotonic(1))) is None

    @pytest.mark.parametrize("backend", ["sdpa", "reference"])
    def test_steps_beyond_the_last_window_have_zero_output_and_gradient(self, backend):
        inputs = [torch.randn(1, 1, 3, 4, requires_grad=True) for _ in range(3)]
        output = attend(*inputs, align=LocalMonotonic(1), start=7, backend=backend).output
        assert (output == 0).all()
        assert all((grad == 0).all() for grad in torch.autograd.grad(output.sum(), inputs))

    def test_negative_windows_raise(self):
        with pytest.raises(InputError, match="window"):
            LocalMonotonic(-1)


class TestLocalPredictive:
    """A Gaussian around a position predicted from the query."""

    def test_weights_match_the_paper(self):
        torch.manual_seed(0)
        align = LocalPredictive(4, 2, hidden_dim=5).double().requires_grad_(False)
        query, key = torch.randn(2, 2, 3, 4, dtype=torch.float64), torch.randn(2, 2, 9, 4, dtype=torch.float64)
        lengths = torch.tensor([9, 5])
        actual = attend(query, key, key, score=DOT, align=align, mask=Padding(lengths), need_weights=True).weights
        expected = torch.zeros_like(actual)
        for b, h, q in itertools.product(range(2), range(2), range(3)):
            logit = sum(
                float(align.vector[j]) * math.tanh(sum(float(query[b, h, q, i] * align.weight[i, j]) for i in range(4)))
                for j in range(5)
            )
            centre = int(lengths[b]) / (1 + math.exp(-logit))
            near = [k for k in range(int(lengths[b])) if abs(k - centre) <= 2]
            total = sum(math.exp(float(query[b, h, q] @ key[b, h, k])) for k in near)
            for k in near:
                share = math.exp(float(query[b, h, q] @ key[b, h, k])) / total
                expected[b, h, q, k] = share * math.exp(-((k - centre) ** 2) / (2 * (2 / 2) ** 2))
        torch.testing.assert_close(actual, expected)

    def test_gaussian_is_1_at_the_centre_and_exp_minus_2_at_the_edge(self):
        torch.manual_seed(0)
        align, keys = LocalPredictive(3, 3).double(), 8
        with torch.no_grad():
            align.vector.zero_()  # sigmoid(0) = 1/2: the centre is at position 4
        query, key = torch.randn(1, 1, 2, 3, dtype=torch.float64), torch.randn(1, 1, keys, 3, dtype=torch.float64)
        assert align.centre(query, keys).flatten().tolist() == [4.0, 4.0]
        weights = attend(query, key, key, align=align, need_weights=True).weights
        near = (torch.arange(keys) - 4).abs() <= 3
        softmax = attend(
            query, key, key, align=Softmax(), mask=Dense(near.view(1, 1, 1, -1)), need_weights=True
        ).weights
        ratio = (weights / softmax)[..., near]
        distance = torch.arange(-3, 4, dtype=torch.float64)
        torch.testing.assert_close(ratio, torch.exp(-distance.square() / (2 * 1.5**2)).expand_as(ratio))
        torch.testing.assert_close(ratio[..., 3], torch.ones(1, 1, 2, dtype=torch.float64))
        torch.testing.assert_close(ratio[..., 6], torch.full((1, 1, 2), math.exp(-2), dtype=torch.float64))

    def test_centre_is_within_the_unmasked_keys(self):
        torch.manual_seed(0)
        align = LocalPredictive(3, 1)
        query = 10 * torch.randn(2, 2, 50, 3)
        centres = align.centre(query, torch.tensor([20, 5]).view(2, 1, 1))
        assert (centres >= 0).all()
        assert (centres[0] <= 20).all()
        assert (centres[1] <= 5).all()
        torch.testing.assert_close(centres[0] / 20, align.centre(query, 1)[0])

    def test_centre_has_subposition_precision_in_bfloat16(self):
        torch.manual_seed(0)
        align, query = LocalPredictive(8, 4), torch.randn(1, 1, 100, 8)
        with torch.no_grad():
            align.vector.fill_(0.01)  # all centres are near 500, where the spacing of bfloat16 is 2
        assert len(align.bfloat16().centre(query.bfloat16(), 1000).unique()) > 20

    def test_window_position_is_learned(self):
        torch.manual_seed(0)
        align = LocalPredictive(2, 4)
        query, key = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 40, 2)  # equal scores: only positions matter
        value = torch.zeros(1, 1, 40, 1)
        value[0, 0, 24] = 1.0
        optimizer = torch.optim.Adam(align.parameters(), lr=0.03)
        for _ in range(60):
            optimizer.zero_grad()
            (-attend(query, key, value, align=align).output.sum()).backward()
            optimizer.step()
        assert align.centre(query, 40).item() == pytest.approx(24, abs=0.6)

    def test_window_must_be_positive(self):
        with pytest.raises(InputError, match="window"):
            LocalPredictive(4, 0)

    @pytest.mark.usefixtures("unchecked")
    def test_queries_of_the_wrong_size_raise(self):
        x = torch.randn(1, 1, 3, 5)
        with pytest.raises(ShapeError, match="4 features"):
            attend(x, x, x, align=LocalPredictive(4, 2))


def nearest_distribution(scores: list[float]) -> list[float]:
    """Projection onto the simplex by enumerating all supports."""
    best, least = [], math.inf
    for size in range(1, len(scores) + 1):
        for support in itertools.combinations(range(len(scores)), size):
            tau = (sum(scores[i] for i in support) - 1) / size
            point = [scores[i] - tau if i in support else 0.0 for i in range(len(scores))]
            distance = sum((p - s) ** 2 for p, s in zip(point, scores, strict=True))
            if min(point) >= 0 and distance < least:
                best, least = point, distance
    return best


def entmax_differences(scores: list[float], alpha: float) -> Tensor:
    """d_i = (alpha - 1) s_i - tau, each to the relative precision of float64, even where it is close to 0.

    The support is found from exact differences of scores. The lowest weight on it is then the unknown, instead of tau.
    """

    def differences(lowest: Fraction, weight: float) -> Tensor:
        """Return d such that the score `lowest` has this weight."""
        distances = [float(score - lowest) for score in exact]
        return (alpha - 1) * torch.tensor(distances, dtype=torch.float64) + weight ** (alpha - 1)

    def total(lowest: Fraction, weight: float) -> float:
        return float((differences(lowest, weight).clamp(min=0) ** (1 / (alpha - 1))).sum())

    exact = [Fraction(score) for score in scores]
    lowest = min(score for score in exact if total(score, 0.0) < 1)  # at a lower score, the sum would exceed 1
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if total(lowest, middle) < 1 else (low, middle)
    return differences(lowest, high)


class TestSparse:
    """Entmax and sparsemax against their optimization problems."""

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
    def test_sparsemax_is_the_nearest_distribution(self, scores):
        actual = entmax(torch.tensor(scores, dtype=torch.float64), 2.0)
        assert actual.tolist() == pytest.approx(nearest_distribution(scores), abs=1e-12)

    @pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.8, 2.0, 2.5, 4.0, 9.0])
    @settings(max_examples=8, deadline=None)
    @given(scores=st.lists(st.floats(-8, 8), min_size=1, max_size=40))
    @example(scores=[0.0, 0.0, 0.0, 0.0, 3.0])  # one weight of 1, and tau at its minimum
    def test_entmax_satisfies_the_kkt_conditions(self, alpha, scores):
        # KKT conditions of max p . s + H(p), H(p) = sum (p - p^a) / (a (a - 1)): the gradient is constant on the
        # support and not larger elsewhere, so p_i = [d_i]_+ ^ (1 / (a - 1)) with d_i = (a - 1) s_i - tau.
        weights = entmax(torch.tensor(scores, dtype=torch.float64), alpha)
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
        # Float64 resolves d, which is at most 1, to h: rounding errors of (a - 1) s, of tau, and of the sum of n
        # weights, whose derivative by tau is at least 1 / (a - 1). The closed forms of tau add up n squares. For a > 2,
        # a small weight is a steep function of d: at a = 9, d = 1e-16 is a weight of 0.01.
        n, eps = len(scores), torch.finfo(torch.float64).eps
        h = eps * (4 + (alpha - 1) * (n + 1) + n**2)
        differences = entmax_differences(scores, alpha)
        lowest = (differences - h).clamp(min=0) ** (1 / (alpha - 1))
        highest = (differences + h).clamp(min=0) ** (1 / (alpha - 1))
        rounding = 1 + (n + 4) * eps  # of the division by the sum
        assert (weights * rounding >= lowest / highest.sum()).all()
        assert (weights <= rounding * highest / lowest.sum()).all()

    def test_sorting_and_bisection_agree(self):
        torch.manual_seed(0)
        scores = 2 * torch.randn(50, 30, dtype=torch.float64)
        for alpha in (1.5, 2.0):
            torch.testing.assert_close(entmax(scores, alpha + 1e-12), entmax(scores, alpha), rtol=0, atol=1e-9)
        assert ((entmax(scores, 1.5) == 0).sum(-1) > 0).all()

    def test_entmax_approaches_softmax(self):
        torch.manual_seed(0)
        scores = torch.randn(20, 10, dtype=torch.float64)
        torch.testing.assert_close(entmax(scores, 1 + 1e-6), scores.softmax(-1), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("alpha", [1.0, 0.5, -1.0, math.nan, math.inf])
    def test_alpha_must_be_above_1(self, alpha):
        with pytest.raises(InputError, match="alpha"):
            Entmax(alpha)

    @pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0, 3.0, 20.0])
    def test_extreme_scores_give_finite_weights_and_gradients(self, alpha):
        lowest, highest = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
        rows = [[lowest] * 4, [lowest, highest, lowest, 0.0], [highest] * 4, [1e-30, 0.0, -1e30, lowest], [0.0] * 4]
        scores = torch.tensor(rows, requires_grad=True)
        weights = entmax(scores, alpha)
        (grad,) = torch.autograd.grad((weights * torch.arange(4.0)).sum(), scores)
        assert grad.isfinite().all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(5))
        assert weights[1].tolist() == [0, 1, 0, 0]
        torch.testing.assert_close(weights[4], torch.full((4,), 0.25))

    @pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0, 20.0])
    def test_gradient_of_equal_scores_matches_the_closed_form(self, alpha):
        scores, coefficients = torch.zeros(4, requires_grad=True), torch.tensor([1.0, -2.0, 0.5, 3.0])
        (grad,) = torch.autograd.grad(entmax(scores, alpha) @ coefficients, scores)
        torch.testing.assert_close(
            grad, 0.25 ** (2 - alpha) * (coefficients - coefficients.mean())
        )  # p = 1/4, so r is constant

    @pytest.mark.parametrize("alpha", [1.2, 1.5, 1.7, 2.0, 3.0])
    def test_many_small_weights_are_accurate(self, alpha):
        for spread in (1e-6, 1e-4, 1e-2):
            scores = spread * torch.linspace(-1, 1, 1000)
            truth = entmax(scores.double(), alpha)
            error = (entmax(scores, alpha).double() - truth).abs().max() / truth.max()
            assert error < 32 * torch.finfo(torch.float32).eps

    def test_overflowing_gradients_are_clamped(self):
        scores = torch.zeros(1000, requires_grad=True)  # with weights of 1/1000, r = 1000^18
        (grad,) = torch.autograd.grad(entmax(scores, 20.0) @ torch.linspace(-1, 1, 1000), scores)
        assert grad.isfinite().all()

    @pytest.mark.parametrize("alpha", [1.4, 1.5, 2.0])
    def test_gradgradcheck(self, alpha):
        torch.manual_seed(0)
        scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda s: entmax(s, alpha), scores)

    def test_low_scores_get_weight_exactly_zero(self):
        query, eye = torch.tensor([[[[3.0, 2.9, 0.0]]]]), torch.eye(3).view(1, 1, 3, 3)
        weights = attend(query, eye, eye, score=DOT, align=Sparsemax(), need_weights=True).weights
        torch.testing.assert_close(weights, torch.tensor([[[[0.55, 0.45, 0.0]]]]))
        assert weights[..., 2] == 0

    def test_works_with_any_score(self):
        x = torch.randn(1, 1, 3, 4)
        assert attend(x, x, x, score=Additive(4, 4, 4), align=Entmax()).output.shape == x.shape


def test_alignments_can_be_watched():
    torch.manual_seed(0)
    x = torch.randn(2, 2, 5, DIM)
    for name in ("local-m", "local-p", "entmax 1.5", "hard, in evaluation", "addressing"):
        layer = Attend(align=ALIGNS[name](2, 2, 5, 5), backend="reference")
        with watch(torch.nn.ModuleDict({"layer": layer}), heads=[1]) as recorded:
            output = layer(x, x, x).output
        torch.testing.assert_close(recorded["layer"].weights @ x[:, [1]], output[:, [1]])


COMPILED = """
import torch
from qkv.attention import attend
from qkv.attention.hard import Hard
from qkv.attention.sparse import Entmax, Sparsemax

for align in (Sparsemax(), Entmax(), Entmax(1.3), Hard(), Hard("gumbel"), Hard().eval()):
    def forward(query, key, align=align):
        return attend(query, key, key, align=align, backend="reference").output

    inputs = [torch.randn(2, 2, n, 4, requires_grad=True) for n in (3, 5)]
    results = []
    for function in (forward, torch.compile(forward, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)
        output = function(*inputs)
        grads = torch.autograd.grad(output.sin().sum(), inputs, allow_unused=True, materialize_grads=True)
        results.append((output, *grads))
    torch.testing.assert_close(*results)
"""


@pytest.mark.slow
def test_sparse_and_hard_alignments_compile_without_graph_breaks():
    # In a separate process: the run-time shape checks of the tests cannot be compiled.
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


class TestLinearStart:
    """Softmax that is left out at the start of training."""

    @pytest.mark.parametrize(("done", "linear"), [(0.0, True), (0.29, True), (0.3, False), (1.0, False)])
    def test_weights_are_the_scores_at_the_start_and_their_softmax_afterwards(self, done, linear):
        query, key, value = (torch.randn(2, 1, length, 4, dtype=torch.float64) for length in (3, 5, 5))
        mask = Padding(torch.tensor([5, 2]))
        align = LinearStart(until=0.3)
        align.set_progress(done)
        result = attend(query, key, value, score=Dot(), align=align, mask=mask, need_weights=True)
        for row, length in enumerate((5, 2)):
            scores = query[row, 0] @ key[row, 0, :length].T
            weights = scores if linear else scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
            torch.testing.assert_close(result.weights[row, 0, :, :length], weights)
            assert (result.weights[row, 0, :, length:] == 0).all()
            torch.testing.assert_close(result.output[row, 0], weights @ value[row, 0, :length])

    @pytest.mark.parametrize("done", [0.0, 1.0])
    def test_gradcheck(self, done):
        inputs = tuple(torch.randn(1, 1, n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 4, 4))
        align = LinearStart(until=0.5)
        align.set_progress(done)
        torch.autograd.gradcheck(lambda *qkv: attend(*qkv, align=align, mask=Padding(torch.tensor([3]))).output, inputs)

    def test_evaluation_and_fused_kernels_use_the_softmax(self):
        inputs = tuple(torch.randn(2, 1, 4, 8) for _ in range(3))
        align = LinearStart(until=1.0)
        align.set_progress(0.0)
        assert not torch.allclose(attend(*inputs, align=align).output, attend(*inputs).output)
        align.eval()
        fused = attend(*inputs, align=align, backend="sdpa").output
        torch.testing.assert_close(fused, attend(*inputs, backend="sdpa").output)

    def test_until_is_a_fraction(self):
        with pytest.raises(InputError, match="until"):
            LinearStart(until=1.5)

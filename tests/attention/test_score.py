"""Every score against its formula written as loops in float64."""

import math
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from qkv.attention import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    Location,
    LowRankBilinear,
    ScaledDot,
    Score,
    Sizes,
    attend,
)  # fmt: skip
from qkv.config import Term
from qkv.errors import InputError, ShapeError
from qkv.registry import registered

BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 5
QUERY_DIM, KEY_DIM, HIDDEN = 4, 6, 7

Formula = Callable[[Score, int, list[float], list[float], int], float]  # score, head, q, k, and the index of the key


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread, which is faster for tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomize(score: Score, seed: int = 1) -> Score:
    """Convert the score to float64 and give it large random parameters."""
    score.double()
    for index, weight in enumerate(score.parameters()):
        weight.data = randn(*weight.shape, seed=seed + index) / 2
    return score


def inner(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def column(matrix: Tensor, index: int) -> list[float]:
    return [row[index] for row in matrix.tolist()]


def bilinear(score: Bilinear, head: int, q: list[float], k: list[float], index: int) -> float:
    weight = score.weight[head].tolist()
    return sum(q[i] * weight[i][j] * k[j] for i in range(len(q)) for j in range(len(k)))


def low_rank(score: LowRankBilinear, head: int, q: list[float], k: list[float], index: int) -> float:
    left, right = score.query_weight[head], score.key_weight[head]
    return sum(inner(q, column(left, r)) * inner(k, column(right, r)) for r in range(left.shape[1]))


def cosine(score: Cosine, head: int, q: list[float], k: list[float], index: int) -> float:
    return math.exp(score.log_sharpness[head].item()) * inner(q, k) / (math.hypot(*q) * math.hypot(*k))


def additive(score: Additive, head: int, q: list[float], k: list[float], index: int) -> float:
    left, right, vector = score.query_weight[head], score.key_weight[head], score.vector[head].tolist()
    return sum(v * math.tanh(inner(q, column(left, i)) + inner(k, column(right, i))) for i, v in enumerate(vector))


def concat(score: Concat, head: int, q: list[float], k: list[float], index: int) -> float:
    weight, vector = score.weight[head], score.vector[head].tolist()
    return sum(v * math.tanh(inner(q + k, column(weight, i))) for i, v in enumerate(vector))


def location(score: Location, head: int, q: list[float], k: list[float], index: int) -> float:
    return inner(q, column(score.weight[head], index))


EQUAL_SIZES = {  # elementwise products need equal sizes
    "dot": (lambda heads: Dot(), lambda score, head, q, k, index: inner(q, k)),
    "scaled dot": (lambda heads: ScaledDot(), lambda score, head, q, k, index: inner(q, k) / math.sqrt(len(q))),
    "scaled dot, its own scale": (lambda heads: ScaledDot(0.3), lambda score, head, q, k, index: 0.3 * inner(q, k)),
    "cosine": (lambda heads: Cosine(heads=heads), cosine),
}
ANY_SIZES = {
    "bilinear": (lambda heads: Bilinear(QUERY_DIM, KEY_DIM, heads=heads), bilinear),
    "low-rank bilinear": (lambda heads: LowRankBilinear(QUERY_DIM, KEY_DIM, 2, heads=heads), low_rank),
    "additive": (lambda heads: Additive(QUERY_DIM, KEY_DIM, HIDDEN, heads=heads), additive),
    "concat": (lambda heads: Concat(QUERY_DIM, KEY_DIM, HIDDEN, heads=heads), concat),
    "location": (lambda heads: Location(QUERY_DIM, KEYS + 2, heads=heads), location),
}
ALL = EQUAL_SIZES | ANY_SIZES
WEIGHTED = ("cosine", *ANY_SIZES)


def make(name: str, heads: int) -> tuple[Score, Tensor, Tensor]:
    """A score with queries and keys for it, of different sizes where the formula allows it."""
    key_dim = KEY_DIM if name in ANY_SIZES else QUERY_DIM
    query, key = randn(BATCH, HEADS, QUERIES, QUERY_DIM, seed=7), randn(BATCH, HEADS, KEYS, key_dim, seed=8)
    return randomize(ALL[name][0](heads)), query, key


def by_hand(name: str, score: Score, query: Tensor, key: Tensor) -> Tensor:
    formula: Formula = ALL[name][1]
    one_for_all = all(len(weight) == 1 for weight in score.parameters())
    expected = torch.empty(*query.shape[:3], key.shape[2], dtype=torch.float64)
    for b, h, i, j in product(*map(range, expected.shape)):
        expected[b, h, i, j] = formula(
            score, 0 if one_for_all else h, query[b, h, i].tolist(), key[b, h, j].tolist(), j
        )
    return expected


def assert_equal(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("heads", [1, HEADS], ids=["shared", "per head"])
@pytest.mark.parametrize("name", ALL)
class TestFormula:
    """Properties of all scores, with shared and with per-head parameters."""

    def test_score_matches_its_formula(self, name, heads):
        score, query, key = make(name, heads)
        assert_equal(score(query, key), by_hand(name, score, query, key))

    def test_single_queries_match_all_queries(self, name, heads):
        score, query, key = make(name, heads)
        one_by_one = [score(query[:, :, i : i + 1], key) for i in range(QUERIES)]
        assert_equal(torch.cat(one_by_one, dim=2), score(query, key))

    def test_transformed_keys_match_raw_keys(self, name, heads):
        score, query, key = make(name, heads)
        value = randn(BATCH, HEADS, KEYS, 3, seed=9)
        transformed = score.keys(key)
        assert_equal(score.compare(score.transform_query(query), transformed.tensor), score(query, key), atol=0)
        for i in range(QUERIES):
            single = query[:, :, i : i + 1]
            raw = attend(single, key, value, score=score, need_weights=True)
            result = attend(single, transformed, value, score=score, need_weights=True)
            assert_equal(result.output, raw.output, atol=0)
            assert_equal(result.weights, raw.weights, atol=0)

    def test_gradcheck(self, name, heads):
        score, query, key = make(name, heads)
        query, key = query[:1, :, :1].requires_grad_(), key[:1, :, :2].requires_grad_()
        assert torch.autograd.gradcheck(lambda q, k, *_: score(q, k), (query, key, *score.parameters()))

    def test_selected_heads_are_slices_of_all(self, name, heads):
        score, query, key = make(name, heads)
        chosen = [2, 0]
        subset = score.select_heads(tuple(chosen))(query[:, chosen], key[:, chosen])
        assert_equal(subset, score(query, key)[:, chosen])

    def test_selected_heads_have_gradients_in_the_original_parameters(self, name, heads):
        score, query, key = make(name, heads)
        weights = list(score.parameters())
        if not weights:
            assert score.select_heads((1,)) is score
            return
        chosen = [2, 0]
        subset = score.select_heads(tuple(chosen))(query[:, chosen], key[:, chosen]).square().sum()
        same = score(query, key)[:, chosen].square().sum()
        for actual, expected in zip(
            torch.autograd.grad(subset, weights), torch.autograd.grad(same, weights), strict=True
        ):
            assert actual.abs().max() > 0
            assert_equal(actual, expected, atol=1e-10)
            if heads > 1:
                assert (actual[1] == 0).all()  # the head that was not selected
        assert all(isinstance(weight, nn.Parameter) for weight in score.parameters())  # the score itself is unchanged


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("name", [name for name in ALL if name != "location"])
def test_scores_are_independent_of_other_keys(name, heads):
    score, query, key = make(name, heads)
    one_by_one = [score(query, key[:, :, j : j + 1]) for j in range(KEYS)]
    assert_equal(torch.cat(one_by_one, dim=3), score(query, key))


@pytest.mark.parametrize("name", WEIGHTED)
def test_selected_heads_of_a_shared_score_keep_the_same_parameters(name):
    score, _, _ = make(name, 1)
    part = score.select_heads((1,))
    assert part is not score
    for weight, shared in zip(score._parameters.values(), part._parameters.values(), strict=True):
        assert weight is shared


class TestDotProducts:
    """Scores that are dot products of transformed queries and keys."""

    def test_scaled_dot_with_scale_one_is_dot(self):
        _, query, key = make("dot", 1)
        assert ScaledDot(1.0)(query, key).equal(Dot()(query, key))

    def test_a_scale_of_zero_is_valid(self):
        _, query, key = make("dot", 1)
        assert (ScaledDot(0.0)(query, key) == 0).all()

    @pytest.mark.parametrize("heads", [1, HEADS])
    def test_low_rank_bilinear_is_bilinear_with_the_product_of_its_matrices(self, heads):
        score, query, key = make("low-rank bilinear", heads)
        full = Bilinear(QUERY_DIM, KEY_DIM, heads=heads).double()
        full.weight.data = score.query_weight @ score.key_weight.transpose(1, 2)
        assert torch.linalg.matrix_rank(full.weight[0]) == 2 < min(QUERY_DIM, KEY_DIM)
        assert_equal(score(query, key), full(query, key))

    @pytest.mark.parametrize("rank", [min(QUERY_DIM, KEY_DIM), min(QUERY_DIM, KEY_DIM) + 2])
    def test_full_rank_can_express_any_bilinear_score(self, rank):
        full, query, key = make("bilinear", HEADS)
        left, singular, right = torch.linalg.svd(full.weight.detach(), full_matrices=False)
        smaller = min(QUERY_DIM, KEY_DIM)
        score = LowRankBilinear(QUERY_DIM, KEY_DIM, rank, heads=HEADS).double()
        score.query_weight.data = torch.zeros(HEADS, QUERY_DIM, rank, dtype=torch.float64)
        score.key_weight.data = torch.zeros(HEADS, KEY_DIM, rank, dtype=torch.float64)
        score.query_weight.data[..., :smaller] = left * singular[:, None]
        score.key_weight.data[..., :smaller] = right.transpose(1, 2)
        assert_equal(score(query, key), full(query, key))

    def test_a_lower_rank_has_fewer_parameters(self):
        def size(score):
            return sum(weight.numel() for weight in score.parameters())

        assert size(LowRankBilinear(64, 64, 8)) == 2 * 64 * 8 < size(Bilinear(64, 64)) == 64 * 64

    def test_rank_below_one_raises(self):
        with pytest.raises(InputError, match="rank"):
            LowRankBilinear(4, 4, rank=0)


class TestCosine:
    """b cos(q, k) with a learned sharpness b."""

    def test_independent_of_the_norms_of_queries_and_keys(self):
        score, query, key = make("cosine", HEADS)
        assert_equal(score(1000 * query, 0.001 * key), score(query, key))
        assert_equal(score(-query, key), -score(query, key))

    def test_scores_are_bounded_by_the_sharpness(self):
        score, query, key = make("cosine", 1)
        sharpness = score.log_sharpness.exp().item()
        assert score(query, key).abs().max() <= sharpness
        aligned = score(query, 3 * query).diagonal(dim1=2, dim2=3)
        assert_equal(aligned, torch.full_like(aligned, sharpness))

    def test_sharpness_is_the_initial_value(self):
        _, query, key = make("cosine", 1)
        assert_equal(Cosine(5.0).double()(query, key), 5 * Cosine().double()(query, key), atol=1e-6)

    def test_the_sharpness_is_learned_and_stays_positive(self):
        _, query, _ = make("cosine", HEADS)
        score = Cosine(2.0, heads=HEADS).double()
        before = score.log_sharpness.exp().detach()
        optimizer = torch.optim.SGD(score.parameters(), lr=2.0)
        score(query, query).diagonal(dim1=2, dim2=3).sum().backward()  # the loss decreases with b without bound
        assert (score.log_sharpness.grad.abs() > 0.1).all()
        optimizer.step()
        after = score.log_sharpness.exp()
        assert (after < before).all()
        assert (after > 0).all()
        assert (score(query, query).diagonal(dim1=2, dim2=3) > 0).all()

    @pytest.mark.parametrize(
        "dtype",
        [
            torch.float64,
            torch.float32,
            torch.bfloat16,
            torch.float16,
        ],
    )
    def test_a_vector_of_zeros_scores_zero_and_has_a_finite_gradient(self, dtype):
        query, key = torch.ones(1, 1, 2, 4, dtype=dtype), torch.ones(1, 1, 3, 4, dtype=dtype)
        query[:, :, 1] = 0
        key[:, :, 2] = 0
        query.requires_grad_()
        key.requires_grad_()
        score = Cosine().to(dtype)
        scores = score(query, key)
        torch.testing.assert_close(scores[0, 0].to(dtype), torch.tensor([[1, 1, 0], [0, 0, 0]], dtype=dtype))
        for grad in torch.autograd.grad(scores.sum(), (query, key, score.log_sharpness)):
            assert grad.isfinite().all()

    @pytest.mark.parametrize("sharpness", [0.0, -1.0, math.nan])
    def test_sharpness_must_be_positive(self, sharpness):
        with pytest.raises(InputError, match="sharpness"):
            Cosine(sharpness)


class TestHiddenLayer:
    """Additive and concat are the same network, with a split or a single first matrix."""

    @pytest.mark.parametrize("heads", [1, HEADS])
    def test_concat_is_additive_with_a_split_matrix(self, heads):
        score, query, key = make("concat", heads)
        split = Additive(QUERY_DIM, KEY_DIM, HIDDEN, heads=heads).double()
        split.query_weight.data = score.weight[:, :QUERY_DIM].detach().clone()
        split.key_weight.data = score.weight[:, QUERY_DIM:].detach().clone()
        split.vector.data = score.vector.detach().clone()
        assert_equal(score(query, key), split(query, key))

    def test_scores_are_bounded_by_the_norm_of_the_vector(self):
        score, query, key = make("additive", 1)
        assert score(1e3 * query, 1e3 * key).abs().max() <= score.vector.abs().sum()


class TestLocation:
    """A score per position, independent of the keys."""

    def test_independent_of_the_keys(self):
        score, query, key = make("location", HEADS)
        assert score(query, key).equal(score(query, -3 * key))

    def test_fewer_keys_use_the_first_positions(self):
        score, query, key = make("location", HEADS)
        assert score(query, key[:, :, :2]).equal(score(query, key)[..., :2])

    @pytest.mark.usefixtures("unchecked")
    def test_more_than_max_keys_raise(self):
        with pytest.raises(ShapeError, match="at most 3"):
            Location(QUERY_DIM, 3)(torch.zeros(1, 1, 2, QUERY_DIM), torch.zeros(1, 1, 4, 5))


class TestSharedKeys:
    """Grouped-query attention."""

    @pytest.mark.parametrize("name", ALL)
    def test_shared_keys_match_repeated_keys(self, name):
        score, _, key = make(name, 1)
        query, key = randn(BATCH, 4, QUERIES, QUERY_DIM, seed=7), key[:, :2]
        value = randn(BATCH, 2, KEYS, 3, seed=9)
        shared = attend(query, key, value, score=score, need_weights=True)
        alone = attend(query, *(x[:, [0, 0, 1, 1]] for x in (key, value)), score=score, need_weights=True)
        assert_equal(shared.output, alone.output)
        assert_equal(shared.weights, alone.weights)
        assert_equal(attend(query, score.keys(key), value, score=score).output, alone.output)

    @pytest.mark.parametrize("name", ["bilinear", "cosine", "location"])
    def test_per_head_query_parameters_support_shared_keys(self, name):
        score = randomize(ALL[name][0](4))
        key_dim = KEY_DIM if name in ANY_SIZES else QUERY_DIM
        query, key, value = (
            randn(1, heads, n, dim) for heads, n, dim in ((4, 2, QUERY_DIM), (2, 3, key_dim), (2, 3, 1))
        )
        shared = attend(query, key, value, score=score, need_weights=True).weights
        expected = by_hand(name, score, query, key[:, [0, 0, 1, 1]]).softmax(dim=-1)
        assert_equal(shared, expected)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("name", ["low-rank bilinear", "additive", "concat"])
    def test_per_head_key_parameters_need_as_many_key_heads(self, name):
        score = randomize(ALL[name][0](4))
        query, key = randn(1, 4, 2, QUERY_DIM), randn(1, 2, 3, KEY_DIM)
        with pytest.raises(ShapeError, match="4 heads"):
            attend(query, key, key, score=score)


@pytest.mark.usefixtures("unchecked")
class TestWrongShapes:
    """Incompatible shapes raise before any product is computed."""

    @pytest.mark.parametrize("name", EQUAL_SIZES)
    def test_dot_products_need_queries_and_keys_of_the_same_size(self, name):
        score = randomize(ALL[name][0](1))
        with pytest.raises(ShapeError, match="same size"):
            score(randn(1, 1, 2, 4), randn(1, 1, 3, 6))

    @pytest.mark.parametrize("name", ANY_SIZES)
    def test_queries_of_the_wrong_size_raise(self, name):
        score, _, key = make(name, 1)
        with pytest.raises(ShapeError, match="query of 4"):
            score(randn(BATCH, HEADS, 2, 9), key)

    @pytest.mark.parametrize("name", ["low-rank bilinear", "additive", "concat"])
    def test_keys_of_the_wrong_size_raise(self, name):
        score, query, _ = make(name, 1)
        with pytest.raises(ShapeError, match="key of 6"):
            score(query, randn(BATCH, HEADS, 2, 9))

    def test_keys_of_the_wrong_size_for_bilinear_raise(self):
        score, query, _ = make("bilinear", 1)
        with pytest.raises(ShapeError, match="the key 9"):
            score(query, randn(BATCH, HEADS, 2, 9))

    @pytest.mark.parametrize(
        "name",
        [
            *ANY_SIZES,
            "cosine",
        ],
    )
    def test_wrong_number_of_heads_raises(self, name):
        score, query, key = make(name, HEADS)
        with pytest.raises(ShapeError, match="3 heads"):
            score(query[:, :2], key[:, :2])


class TestNames:
    """Recipes select scores by name and build them from sizes."""

    def test_registered_names(self):
        assert {
            "dot": Dot, "scaled_dot": ScaledDot, "bilinear": Bilinear, "low_rank_bilinear": LowRankBilinear,
            "cosine": Cosine, "additive": Additive, "concat": Concat, "location": Location,
            "general": Bilinear, "low_rank": LowRankBilinear,
        } == registered("score")  # fmt: skip

    @pytest.mark.parametrize("name", sorted(registered("score")))
    def test_from_sizes_matches_tensors_of_these_sizes(self, name):
        same = name in ("dot", "scaled_dot", "cosine")
        key_dim = QUERY_DIM if same else KEY_DIM
        score = Term("score", name).build(Sizes(QUERY_DIM, key_dim, hidden=2, max_keys=KEYS, heads=HEADS))
        assert type(score) is registered("score")[name]
        query, key = torch.randn(1, HEADS, 2, QUERY_DIM), torch.randn(1, HEADS, KEYS, key_dim)
        assert score(query, key).shape == (1, HEADS, 2, KEYS)
        assert all(len(weight) == HEADS for weight in score.parameters())

    def test_from_sizes_parameter_shapes(self):
        sizes = Sizes(query=2, key=3, hidden=5, max_keys=7, heads=4)
        scores = {name: Term("score", name).build(sizes) for name in registered("score")}
        shapes = {name: [tuple(weight.shape) for weight in score.parameters()] for name, score in scores.items()}
        assert shapes == {
            "dot": [],
            "scaled_dot": [],
            "bilinear": [(4, 2, 3)],
            "low_rank_bilinear": [(4, 2, 5), (4, 3, 5)],
            "cosine": [(4,)],
            "additive": [(4, 2, 5), (4, 3, 5), (4, 5)],
            "concat": [(4, 5, 5), (4, 5)],
            "location": [(4, 2, 7)],
            "general": [(4, 2, 3)],
            "low_rank": [(4, 2, 5), (4, 3, 5)],
        }

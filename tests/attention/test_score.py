"""Every score against its formula written out with loops, in float64."""

import math
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from qkv.attention import (
    SCORES,
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
from qkv.errors import InputError, ShapeError

BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 5
QUERY_DIM, KEY_DIM, HIDDEN = 4, 6, 7

Formula = Callable[[Score, int, list[float], list[float], int], float]  # score, head, q, k, and the number of the key


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors this small are computed sooner by one thread than two can agree on who does what."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(score: Score, seed: int = 1) -> Score:
    """The score in float64, with weights large enough to matter."""
    score.double()
    for number, weight in enumerate(score.parameters()):
        weight.data = drawn(*weight.shape, seed=seed + number) / 2
    return score


def inner(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def column(matrix: Tensor, number: int) -> list[float]:
    return [row[number] for row in matrix.tolist()]


def bilinear(score: Bilinear, head: int, q: list[float], k: list[float], number: int) -> float:
    weight = score.weight[head].tolist()
    return sum(q[i] * weight[i][j] * k[j] for i in range(len(q)) for j in range(len(k)))


def low_rank(score: LowRankBilinear, head: int, q: list[float], k: list[float], number: int) -> float:
    left, right = score.query_weight[head], score.key_weight[head]
    return sum(inner(q, column(left, r)) * inner(k, column(right, r)) for r in range(left.shape[1]))


def cosine(score: Cosine, head: int, q: list[float], k: list[float], number: int) -> float:
    return math.exp(score.log_sharpness[head].item()) * inner(q, k) / (math.hypot(*q) * math.hypot(*k))


def additive(score: Additive, head: int, q: list[float], k: list[float], number: int) -> float:
    left, right, vector = score.query_weight[head], score.key_weight[head], score.vector[head].tolist()
    return sum(v * math.tanh(inner(q, column(left, i)) + inner(k, column(right, i))) for i, v in enumerate(vector))


def concat(score: Concat, head: int, q: list[float], k: list[float], number: int) -> float:
    weight, vector = score.weight[head], score.vector[head].tolist()
    return sum(v * math.tanh(inner(q + k, column(weight, i))) for i, v in enumerate(vector))


def location(score: Location, head: int, q: list[float], k: list[float], number: int) -> float:
    return inner(q, column(score.weight[head], number))


EQUAL_SIZES = {  # those that compare feature by feature
    "dot": (lambda heads: Dot(), lambda score, head, q, k, number: inner(q, k)),
    "scaled dot": (lambda heads: ScaledDot(), lambda score, head, q, k, number: inner(q, k) / math.sqrt(len(q))),
    "scaled dot, its own scale": (lambda heads: ScaledDot(0.3), lambda score, head, q, k, number: 0.3 * inner(q, k)),
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
    """A score, with queries and keys that it can compare: of two sizes where the formula allows it."""
    key_dim = KEY_DIM if name in ANY_SIZES else QUERY_DIM
    query, key = drawn(BATCH, HEADS, QUERIES, QUERY_DIM, seed=7), drawn(BATCH, HEADS, KEYS, key_dim, seed=8)
    return made(ALL[name][0](heads)), query, key


def by_hand(name: str, score: Score, query: Tensor, key: Tensor) -> Tensor:
    formula: Formula = ALL[name][1]
    one_for_all = all(len(weight) == 1 for weight in score.parameters())
    expected = torch.empty(*query.shape[:3], key.shape[2], dtype=torch.float64)
    for b, h, i, j in product(*map(range, expected.shape)):
        expected[b, h, i, j] = formula(
            score, 0 if one_for_all else h, query[b, h, i].tolist(), key[b, h, j].tolist(), j
        )
    return expected


def assert_equal(found: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("heads", [1, HEADS], ids=["one for all heads", "one for each head"])
@pytest.mark.parametrize("name", ALL)
class TestFormula:
    """What is true of every score, with one set of weights and with one for each head."""

    def test_a_score_is_its_formula(self, name, heads):
        score, query, key = make(name, heads)
        assert_equal(score(query, key), by_hand(name, score, query, key))

    def test_one_query_at_a_time_scores_what_all_at_once_score(self, name, heads):
        score, query, key = make(name, heads)
        one_by_one = [score(query[:, :, i : i + 1], key) for i in range(QUERIES)]
        assert_equal(torch.cat(one_by_one, dim=2), score(query, key))

    def test_keys_prepared_once_score_what_raw_keys_score(self, name, heads):
        score, query, key = make(name, heads)
        value = drawn(BATCH, HEADS, KEYS, 3, seed=9)
        prepared = score.keys(key)
        assert_equal(score.compare(score.of_query(query), prepared.tensor), score(query, key), atol=0)
        for i in range(QUERIES):
            one = query[:, :, i : i + 1]
            raw = attend(one, key, value, score=score, need_weights=True)
            read = attend(one, prepared, value, score=score, need_weights=True)
            assert_equal(read.output, raw.output, atol=0)
            assert_equal(read.weights, raw.weights, atol=0)

    def test_gradients_of_queries_keys_and_weights_pass_the_numerical_check(self, name, heads):
        score, query, key = make(name, heads)
        query, key = query[:1, :, :1].requires_grad_(), key[:1, :, :2].requires_grad_()
        assert torch.autograd.gradcheck(lambda q, k, *_: score(q, k), (query, key, *score.parameters()))

    def test_some_heads_of_a_score_are_slices_of_all(self, name, heads):
        score, query, key = make(name, heads)
        chosen = [2, 0]
        some = score.of_heads(tuple(chosen))(query[:, chosen], key[:, chosen])
        assert_equal(some, score(query, key)[:, chosen])

    def test_some_heads_of_a_score_learn_into_the_weights_of_all(self, name, heads):
        score, query, key = make(name, heads)
        weights = list(score.parameters())
        if not weights:
            assert score.of_heads((1,)) is score
            return
        chosen = [2, 0]
        some = score.of_heads(tuple(chosen))(query[:, chosen], key[:, chosen]).square().sum()
        same = score(query, key)[:, chosen].square().sum()
        for found, expected in zip(torch.autograd.grad(some, weights), torch.autograd.grad(same, weights), strict=True):
            assert found.abs().max() > 0
            assert_equal(found, expected, atol=1e-10)
            if heads > 1:
                assert (found[1] == 0).all()  # the head that was left out
        assert all(isinstance(weight, nn.Parameter) for weight in score.parameters())  # the score itself is as it was


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("name", [name for name in ALL if name != "location"])
def test_a_key_scores_the_same_whichever_others_are_there(name, heads):
    score, query, key = make(name, heads)
    one_by_one = [score(query, key[:, :, j : j + 1]) for j in range(KEYS)]
    assert_equal(torch.cat(one_by_one, dim=3), score(query, key))


@pytest.mark.parametrize("name", WEIGHTED)
def test_some_heads_of_a_score_that_all_heads_share_hold_its_very_weights(name):
    score, _, _ = make(name, 1)
    part = score.of_heads((1,))
    assert part is not score
    for weight, other in zip(score._parameters.values(), part._parameters.values(), strict=True):
        assert weight is other


class TestDotProducts:
    """Scores that differ in what they do to queries and keys before the dot product."""

    def test_a_scaled_dot_product_with_scale_one_is_a_dot_product(self):
        _, query, key = make("dot", 1)
        assert ScaledDot(1.0)(query, key).equal(Dot()(query, key))

    def test_a_scale_of_zero_is_a_scale_too(self):
        _, query, key = make("dot", 1)
        assert (ScaledDot(0.0)(query, key) == 0).all()

    @pytest.mark.parametrize("heads", [1, HEADS])
    def test_a_low_rank_bilinear_score_is_bilinear_in_the_product_of_its_matrices(self, heads):
        score, query, key = make("low-rank bilinear", heads)
        full = Bilinear(QUERY_DIM, KEY_DIM, heads=heads).double()
        full.weight.data = score.query_weight @ score.key_weight.transpose(1, 2)
        assert torch.linalg.matrix_rank(full.weight[0]) == 2 < min(QUERY_DIM, KEY_DIM)
        assert_equal(score(query, key), full(query, key))

    @pytest.mark.parametrize("rank", [min(QUERY_DIM, KEY_DIM), min(QUERY_DIM, KEY_DIM) + 2])
    def test_a_rank_of_the_smaller_size_can_express_any_bilinear_score(self, rank):
        full, query, key = make("bilinear", HEADS)
        left, singular, right = torch.linalg.svd(full.weight.detach(), full_matrices=False)
        smaller = min(QUERY_DIM, KEY_DIM)
        score = LowRankBilinear(QUERY_DIM, KEY_DIM, rank, heads=HEADS).double()
        score.query_weight.data = torch.zeros(HEADS, QUERY_DIM, rank, dtype=torch.float64)
        score.key_weight.data = torch.zeros(HEADS, KEY_DIM, rank, dtype=torch.float64)
        score.query_weight.data[..., :smaller] = left * singular[:, None]
        score.key_weight.data[..., :smaller] = right.transpose(1, 2)
        assert_equal(score(query, key), full(query, key))

    def test_a_lower_rank_has_fewer_weights(self):
        def size(score):
            return sum(weight.numel() for weight in score.parameters())

        assert size(LowRankBilinear(64, 64, 8)) == 2 * 64 * 8 < size(Bilinear(64, 64)) == 64 * 64

    def test_a_rank_below_one_is_refused(self):
        with pytest.raises(InputError, match="at least 1, not 0"):
            LowRankBilinear(4, 4, rank=0)


class TestCosine:
    """b cos(q, k), with a sharpness b that is learned."""

    def test_the_lengths_of_queries_and_keys_do_not_matter(self):
        score, query, key = make("cosine", HEADS)
        assert_equal(score(1000 * query, 0.001 * key), score(query, key))
        assert_equal(score(-query, key), -score(query, key))

    def test_no_score_is_beyond_the_sharpness(self):
        score, query, key = make("cosine", 1)
        sharpness = score.log_sharpness.exp().item()
        assert score(query, key).abs().max() <= sharpness
        aligned = score(query, 3 * query).diagonal(dim1=2, dim2=3)
        assert_equal(aligned, torch.full_like(aligned, sharpness))

    def test_the_sharpness_given_is_the_one_it_begins_with(self):
        _, query, key = make("cosine", 1)
        assert_equal(Cosine(5.0).double()(query, key), 5 * Cosine().double()(query, key), atol=1e-6)

    def test_the_sharpness_is_learned_and_stays_positive(self):
        _, query, _ = make("cosine", HEADS)
        score = Cosine(2.0, heads=HEADS).double()
        before = score.log_sharpness.exp().detach()
        optimizer = torch.optim.SGD(score.parameters(), lr=2.0)
        score(query, query).diagonal(dim1=2, dim2=3).sum().backward()  # the loss falls as b does, without end
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
        for slope in torch.autograd.grad(scores.sum(), (query, key, score.log_sharpness)):
            assert slope.isfinite().all()

    @pytest.mark.parametrize("sharpness", [0.0, -1.0, math.nan])
    def test_a_sharpness_that_is_not_positive_is_refused(self, sharpness):
        with pytest.raises(InputError, match="sharpness must be positive"):
            Cosine(sharpness)


class TestHiddenLayer:
    """Additive and concat are one network, its first matrix in two pieces or in one."""

    @pytest.mark.parametrize("heads", [1, HEADS])
    def test_concat_is_additive_with_its_matrix_split(self, heads):
        score, query, key = make("concat", heads)
        split = Additive(QUERY_DIM, KEY_DIM, HIDDEN, heads=heads).double()
        split.query_weight.data = score.weight[:, :QUERY_DIM].detach().clone()
        split.key_weight.data = score.weight[:, QUERY_DIM:].detach().clone()
        split.vector.data = score.vector.detach().clone()
        assert_equal(score(query, key), split(query, key))

    def test_no_score_is_beyond_the_sum_of_the_vector(self):
        score, query, key = make("additive", 1)
        assert score(1e3 * query, 1e3 * key).abs().max() <= score.vector.abs().sum()


class TestLocation:
    """A score for each place, whatever stands there."""

    def test_what_the_keys_are_does_not_matter(self):
        score, query, key = make("location", HEADS)
        assert score(query, key).equal(score(query, -3 * key))

    def test_fewer_keys_than_it_was_made_for_take_the_first_places(self):
        score, query, key = make("location", HEADS)
        assert score(query, key[:, :, :2]).equal(score(query, key)[..., :2])

    @pytest.mark.usefixtures("unchecked")
    def test_more_keys_than_it_was_made_for_are_refused(self):
        with pytest.raises(ShapeError, match="made for at most 3 keys, but there are 4"):
            Location(QUERY_DIM, 3)(torch.zeros(1, 1, 2, QUERY_DIM), torch.zeros(1, 1, 4, 5))


class TestSharedKeys:
    """Several heads of queries share one head of keys and values."""

    @pytest.mark.parametrize("name", ALL)
    def test_keys_that_heads_share_equal_keys_repeated(self, name):
        score, _, key = make(name, 1)
        query, key = drawn(BATCH, 4, QUERIES, QUERY_DIM, seed=7), key[:, :2]
        value = drawn(BATCH, 2, KEYS, 3, seed=9)
        shared = attend(query, key, value, score=score, need_weights=True)
        alone = attend(query, *(x[:, [0, 0, 1, 1]] for x in (key, value)), score=score, need_weights=True)
        assert_equal(shared.output, alone.output)
        assert_equal(shared.weights, alone.weights)
        assert_equal(attend(query, score.keys(key), value, score=score).output, alone.output)

    @pytest.mark.parametrize("name", ["bilinear", "cosine", "location"])
    def test_weights_of_each_head_that_act_on_the_query_alone_serve_shared_keys(self, name):
        score = made(ALL[name][0](4))
        key_dim = KEY_DIM if name in ANY_SIZES else QUERY_DIM
        query, key, value = (
            drawn(1, heads, n, dim) for heads, n, dim in ((4, 2, QUERY_DIM), (2, 3, key_dim), (2, 3, 1))
        )
        shared = attend(query, key, value, score=score, need_weights=True).weights
        expected = by_hand(name, score, query, key[:, [0, 0, 1, 1]]).softmax(dim=-1)
        assert_equal(shared, expected)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("name", ["low-rank bilinear", "additive", "concat"])
    def test_weights_of_each_head_that_act_on_keys_need_as_many_heads_of_keys(self, name):
        score = made(ALL[name][0](4))
        query, key = drawn(1, 4, 2, QUERY_DIM), drawn(1, 2, 3, KEY_DIM)
        with pytest.raises(ShapeError, match="made for 4 heads, but the key has 2"):
            attend(query, key, key, score=score)


@pytest.mark.usefixtures("unchecked")
class TestWrongShapes:
    """Tensors that a score was not made for are refused in words, before any product is formed."""

    @pytest.mark.parametrize("name", EQUAL_SIZES)
    def test_a_product_of_features_needs_queries_and_keys_of_one_size(self, name):
        score = made(ALL[name][0](1))
        with pytest.raises(ShapeError, match="the query has 4 to compare and the key 6: make them alike"):
            score(drawn(1, 1, 2, 4), drawn(1, 1, 3, 6))

    @pytest.mark.parametrize("name", ANY_SIZES)
    def test_a_query_of_another_size_is_refused(self, name):
        score, _, key = make(name, 1)
        with pytest.raises(ShapeError, match="made for a query of 4 features, but it has 9"):
            score(drawn(BATCH, HEADS, 2, 9), key)

    @pytest.mark.parametrize("name", ["low-rank bilinear", "additive", "concat"])
    def test_a_key_of_another_size_is_refused(self, name):
        score, query, _ = make(name, 1)
        with pytest.raises(ShapeError, match="made for a key of 6 features, but it has 9"):
            score(query, drawn(BATCH, HEADS, 2, 9))

    def test_a_key_of_another_size_than_a_bilinear_score_was_made_for_is_refused(self):
        score, query, _ = make("bilinear", 1)
        with pytest.raises(ShapeError, match="the key 9"):
            score(query, drawn(BATCH, HEADS, 2, 9))

    @pytest.mark.parametrize(
        "name",
        [
            *ANY_SIZES,
            "cosine",
        ],
    )
    def test_another_number_of_heads_is_refused(self, name):
        score, query, key = make(name, HEADS)
        with pytest.raises(ShapeError, match="made for 3 heads, but the query has 2"):
            score(query[:, :2], key[:, :2])


class TestNames:
    """A recipe finds a score by its name, and makes it for the model it is in."""

    def test_each_score_has_a_name(self):
        assert {
            "dot": Dot, "scaled_dot": ScaledDot, "bilinear": Bilinear, "low_rank_bilinear": LowRankBilinear,
            "cosine": Cosine, "additive": Additive, "concat": Concat, "location": Location,
            "general": Bilinear, "low_rank": LowRankBilinear,
        } == SCORES  # fmt: skip

    @pytest.mark.parametrize("name", SCORES)
    def test_a_score_made_for_sizes_serves_tensors_of_these_sizes(self, name):
        same = name in ("dot", "scaled_dot", "cosine")
        key_dim = QUERY_DIM if same else KEY_DIM
        score = SCORES[name].sized(Sizes(QUERY_DIM, key_dim, hidden=2, max_keys=KEYS, heads=HEADS))
        assert type(score) is SCORES[name]
        query, key = torch.randn(1, HEADS, 2, QUERY_DIM), torch.randn(1, HEADS, KEYS, key_dim)
        assert score(query, key).shape == (1, HEADS, 2, KEYS)
        assert all(len(weight) == HEADS for weight in score.parameters())

    def test_the_sizes_go_where_they_belong(self):
        sizes = Sizes(query=2, key=3, hidden=5, max_keys=7, heads=4)
        shapes = {name: [tuple(w.shape) for w in cls.sized(sizes).parameters()] for name, cls in SCORES.items()}
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

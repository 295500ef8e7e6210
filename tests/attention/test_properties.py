"""Properties of attention for any input: masks, permutations, batches and limits."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from qkv.attention import (
    ALiBi,
    Attend,
    Causal,
    Cosine,
    Dense,
    Documents,
    Dot,
    Entmax,
    Hard,
    Mask,
    Padding,
    Position,
    Prefix,
    Rotary,
    Sinusoidal,
    Softmax,
    Sparsemax,
    Uniform,
    Window,
    attend,
)  # fmt: skip
from qkv.attention.backends import BACKENDS
from qkv.attention.operator import build_request
from qkv.attention.position import Bias
from qkv.attention.score_shape import ScoreShape
from tests.attention.terms import ALIGNS, SCORES, Make, Sizes

EAGER = ("reference", "sdpa")
LENGTH, DIM = 6, 8
SQUARE = Sizes(batch=2, heads=2, kv_heads=2, queries=LENGTH, keys=LENGTH, dim=DIM, value_dim=3)
MAKE = Make(SQUARE, torch.float64, torch.float64)

SUPPORTED = [  # each score on each backend that supports it
    (score, backend)
    for score, backend in product(SCORES, EAGER)
    if backend == "reference" or score in ("dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine")
]
USES_KEYS = [(score, backend) for score, backend in SUPPORTED if score != "location"]
SUM_TO_ONE = ("softmax", "softmax, temperature 0.7", "uniform", "hard", "sparsemax", "entmax 1.5", "entmax 1.25")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread, which is faster for tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs(batch: int = 2, queries: int = LENGTH, keys: int = LENGTH, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return (
        MAKE.tensor(batch, heads, queries, DIM, seed=7),
        MAKE.tensor(batch, heads, keys, DIM, seed=8),
        MAKE.tensor(batch, heads, keys, 3, seed=9),
    )


def assert_equal(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def differ(a: Tensor, b: Tensor) -> bool:
    return (a - b).abs().max().item() > 1e-3


def grads(output: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients of a sum with distinct coefficients, so that errors cannot cancel."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * weight).sum(), tensors, allow_unused=True, materialize_grads=True)


def dense_mask(
    mask: Mask, batch: int = 2, queries: int = LENGTH, keys: int = LENGTH, heads: int = 2, **where: object
) -> Tensor:
    """The mask as a dense tensor."""
    shape = ScoreShape(batch, heads, queries, keys, torch.device("cpu"), **where)
    return mask.to_dense(shape).expand(batch, heads, queries, keys)


def causal_by_hand(queries: int, keys: int) -> Tensor:
    rows = [[key <= query + keys - queries for key in range(keys)] for query in range(queries)]
    return torch.tensor(rows).expand(2, 2, queries, keys)


IDS = torch.tensor([[0, 0, 0, 1, 1, 2], [3, 5, 5, 5, 5, 3]])
MASKS: dict[str, Mask] = {
    "causal": Causal(),
    "padding": Padding(torch.tensor([4, 2])),
    "window": Window(2, 1),
    "prefix": Prefix(3),
    "prefix by row": Prefix(torch.tensor([1, 4])),
    "documents": Documents(IDS),
    "dense": Dense(MAKE.tensor(2, 2, LENGTH, LENGTH, seed=3) > -0.3),
    "causal and padding": Causal() & Padding(torch.tensor([4, 2])),
    "causal or prefix": Causal() | Prefix(3),
    "not window": ~Window(1, 0),
}


class TestCausal:
    """No query depends on later positions."""

    @pytest.mark.parametrize(("score", "backend"), SUPPORTED)
    def test_causal_masking_matches_recomputing_each_prefix(self, score, backend):
        terms = {"score": SCORES[score](MAKE), "mask": Causal(), "backend": backend}
        query, key, value = inputs()
        full = attend(query, key, value, **terms).output
        for end in range(1, LENGTH + 1):
            prefix = attend(*(x[:, :, :end] for x in (query, key, value)), **terms).output
            assert_equal(prefix, full[:, :, :end])
            last = attend(query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end], **terms).output
            assert_equal(last, full[:, :, end - 1 : end])

    @pytest.mark.parametrize("backend", EAGER)
    def test_no_gradient_flows_to_later_positions(self, backend):
        query, key, value = (x.requires_grad_() for x in inputs())
        output = attend(query, key, value, mask=Causal(), backend=backend).output
        for step in range(LENGTH):
            _, to_key, to_value = torch.autograd.grad(output[:, :, step].sum(), (query, key, value), retain_graph=True)
            assert (to_key[:, :, step + 1 :] == 0).all()
            assert (to_value[:, :, step + 1 :] == 0).all()
            assert (to_value[:, :, : step + 1] != 0).all()


class TestOrder:
    """Without positions, attention is a function of a set."""

    ORDER = torch.tensor([4, 0, 5, 2, 1, 3])

    @pytest.mark.parametrize(("score", "backend"), USES_KEYS)
    def test_self_attention_without_positions_is_permutation_equivariant(self, score, backend):
        terms = {"score": SCORES[score](MAKE), "backend": backend}
        x = MAKE.tensor(2, 2, LENGTH, DIM)
        result = attend(x, x, x, **terms).output
        permuted = x[:, :, self.ORDER]
        assert_equal(attend(permuted, permuted, permuted, **terms).output, result[:, :, self.ORDER])
        assert differ(result, result[:, :, self.ORDER])

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("position", [Rotary(DIM), ALiBi(2)])
    def test_self_attention_with_position_terms_is_not_equivariant(self, position, backend):
        x = MAKE.tensor(2, 2, LENGTH, DIM)
        result = attend(x, x, x, position=position, backend=backend).output
        permuted = x[:, :, self.ORDER]
        assert differ(
            attend(permuted, permuted, permuted, position=position, backend=backend).output, result[:, :, self.ORDER]
        )

    @pytest.mark.parametrize("backend", EAGER)
    def test_self_attention_with_added_positions_is_not_equivariant(self, backend):
        x, positions = MAKE.tensor(2, 2, LENGTH, DIM), Sinusoidal(DIM)(LENGTH).double()
        result = attend(*(x + positions,) * 3, backend=backend).output
        permuted = x[:, :, self.ORDER] + positions
        assert differ(attend(permuted, permuted, permuted, backend=backend).output, result[:, :, self.ORDER])

    def test_the_location_score_is_not_equivariant(self):
        location = SCORES["location"](MAKE)
        x = MAKE.tensor(2, 2, LENGTH, DIM)
        permuted = x[:, :, self.ORDER]
        assert differ(
            attend(permuted, permuted, permuted, score=location).output,
            attend(x, x, x, score=location).output[:, :, self.ORDER],
        )

    @pytest.mark.parametrize(("score", "backend"), USES_KEYS)
    def test_cross_attention_is_invariant_to_the_order_of_keys(self, score, backend):
        terms = {"score": SCORES[score](MAKE), "backend": backend}
        query, key, value = inputs(queries=3)
        permuted = attend(query, key[:, :, self.ORDER], value[:, :, self.ORDER], **terms).output
        assert_equal(permuted, attend(query, key, value, **terms).output)

    @pytest.mark.parametrize("align", SUM_TO_ONE)
    def test_global_alignments_are_invariant_to_the_order_of_keys(self, align):
        query, key, value = inputs(queries=3)
        terms = {"align": ALIGNS[align](MAKE), "backend": "reference"}
        permuted = attend(query, key[:, :, self.ORDER], value[:, :, self.ORDER], **terms).output
        assert_equal(permuted, attend(query, key, value, **terms).output, atol=1e-10)


class Lift(Position):
    """Adds a constant to all scores of a row, different for each row."""

    adds_bias = True

    def bias(self, query: Tensor, shape: ScoreShape) -> Bias:
        return lambda index: (100.0 * index.query - 37.0 * index.head + 11.0 * index.batch).to(query.dtype)


class TestWeights:
    """Properties of all alignments."""

    @pytest.mark.parametrize("mask_name", [None, *MASKS])
    @pytest.mark.parametrize("align", SUM_TO_ONE)
    def test_weights_are_a_distribution_over_the_unmasked_keys(self, align, mask_name):
        mask = None if mask_name is None else MASKS[mask_name]
        weights = attend(*inputs(), mask=mask, align=ALIGNS[align](MAKE), need_weights=True).weights
        allowed = torch.ones_like(weights).bool() if mask is None else dense_mask(mask)
        assert (weights >= 0).all()
        assert (weights[~allowed] == 0).all()
        assert_equal(weights.sum(dim=-1), allowed.any(dim=-1).double())

    @pytest.mark.parametrize("mask", [None, MASKS["causal"], MASKS["documents"]])
    @pytest.mark.parametrize(
        "align", [Softmax(), Softmax(0.5), Uniform(), Sparsemax(), Entmax(1.5), Entmax(1.25), Hard().eval()]
    )
    def test_a_constant_added_to_all_scores_of_a_row_changes_nothing(self, align, mask):
        terms = {"score": Dot(), "align": align, "mask": mask}
        plain = attend(*inputs(), **terms, need_weights=True)
        for backend in EAGER:
            if BACKENDS[backend].supports(build_request(*inputs(), **terms)) is None:
                lifted = attend(*inputs(), **terms, position=Lift(), backend=backend, need_weights=True)
                assert_equal(lifted.output, plain.output, atol=1e-10)
                assert_equal(lifted.weights, plain.weights, atol=1e-10)

    @pytest.mark.parametrize("mask_name", [None, *MASKS])
    @pytest.mark.parametrize("align", SUM_TO_ONE)
    def test_the_output_is_within_the_range_of_the_unmasked_values(self, align, mask_name):
        mask, value = None if mask_name is None else MASKS[mask_name], inputs()[2]
        allowed = torch.ones(2, 2, LENGTH, LENGTH).bool() if mask is None else dense_mask(mask)
        terms = {"mask": mask, "align": ALIGNS[align](MAKE)}
        for backend in EAGER:
            if BACKENDS[backend].supports(build_request(*inputs(), **terms)) is not None:
                continue
            output = attend(*inputs(), **terms, backend=backend).output
            for b, h, q in product(range(2), range(2), range(LENGTH)):
                visible = value[b, h, allowed[b, h, q]]
                if len(visible) == 0:
                    assert (output[b, h, q] == 0).all()
                    continue
                assert (output[b, h, q] >= visible.amin(dim=0) - 1e-12).all()
                assert (output[b, h, q] <= visible.amax(dim=0) + 1e-12).all()

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("mask_name", [None, *MASKS])
    def test_softmax_approaches_hard_attention_and_the_mean_with_temperature(self, mask_name, backend):
        terms = {"mask": None if mask_name is None else MASKS[mask_name]}
        hard = attend(*inputs(), **terms, align=Hard().eval()).output
        mean = attend(*inputs(), **terms, align=Uniform()).output
        cold = [attend(*inputs(), **terms, align=Softmax(t), backend=backend).output for t in (1e-1, 1e-2, 1e-4)]
        hot = [attend(*inputs(), **terms, align=Softmax(t), backend=backend).output for t in (1e1, 1e3, 1e8)]
        for outputs, limit in ((cold, hard), (hot, mean)):
            distances = [(a - limit).abs().max().item() for a in outputs]
            assert distances[0] > distances[1] > distances[2]
            assert distances[2] < 1e-7

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("mask_name", MASKS)
    def test_uniform_attention_is_the_mean_of_the_unmasked_values(self, mask_name, backend):
        query, key, value = inputs()
        allowed = dense_mask(MASKS[mask_name])
        output = attend(query, key, value, mask=MASKS[mask_name], align=Uniform(), backend=backend).output
        for b, h, q in product(range(2), range(2), range(LENGTH)):
            visible = value[b, h, allowed[b, h, q]]
            expected = visible.mean(dim=0) if len(visible) else torch.zeros(3, dtype=torch.float64)
            assert_equal(output[b, h, q], expected)

    def test_uniform_attention_is_independent_of_queries_and_keys(self):
        query, key, value = inputs()
        assert_equal(
            attend(1e6 * query, key, value, align=Uniform()).output, attend(query, -key, value, align=Uniform()).output
        )

    @pytest.mark.parametrize("backend", EAGER)
    def test_zero_dropout_changes_nothing_and_uses_no_randomness(self, backend):
        torch.manual_seed(0)
        expected = torch.rand(1)
        torch.manual_seed(0)
        without = attend(*inputs(), mask=Causal(), backend=backend).output
        assert attend(*inputs(), mask=Causal(), dropout=0.0, backend=backend).output.equal(without)
        assert Attend(dropout=0.5, backend=backend).eval()(*inputs(), Causal()).output.equal(without)
        assert Attend(dropout=0.0, backend=backend).train()(*inputs(), Causal()).output.equal(without)
        assert torch.rand(1).equal(expected)
        assert differ(Attend(dropout=0.5, backend=backend).train()(*inputs(), Causal()).output, without)


class TestLogic:
    """Masks combine like sets of cells."""

    @pytest.mark.parametrize("name", MASKS)
    def test_masks_obey_de_morgan(self, name):
        a = MASKS[name]
        for b in MASKS.values():
            assert dense_mask(~(a & b)).equal(dense_mask(~a | ~b))
            assert dense_mask(~(a | b)).equal(dense_mask(~a & ~b))
            assert dense_mask(~(a & b)).equal(~(dense_mask(a) & dense_mask(b)))

    @pytest.mark.parametrize("name", MASKS)
    def test_a_mask_and_its_complement(self, name):
        assert not dense_mask(MASKS[name] & ~MASKS[name]).any()
        assert dense_mask(MASKS[name] | ~MASKS[name]).all()
        assert (
            0 < dense_mask(MASKS[name]).sum() < 2 * 2 * LENGTH * LENGTH
        )  # otherwise the tests with it would be trivial

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize(
        ("mask", "same"),
        [
            (Window(10**9, 0), Causal()),
            (Prefix(0) | Causal(), Causal()),
            (Prefix(torch.tensor([0, 0])) | Causal(), Causal()),
            (Window(LENGTH, LENGTH), None),
            (Prefix(LENGTH), None),
            (Padding(torch.tensor([LENGTH, LENGTH + 3])), None),
            (Documents(torch.full((2, LENGTH), 4)), None),
            (Documents(torch.full((2, LENGTH), 4)) & Causal(), Causal()),
            (Padding(torch.tensor([2, 5])), Prefix(torch.tensor([2, 5]))),
            (Causal() & ~Causal(), Prefix(0)),
            (~~Causal(), Causal()),
            (~Causal(), Window(0, 10**9) & ~Window(0, 0)),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("queries", [LENGTH, 2])
    def test_equivalent_masks_give_the_same_output(self, mask, same, queries, backend):
        result, expected = (attend(*inputs(queries=queries), mask=m, backend=backend).output for m in (mask, same))
        assert_equal(result, expected)

    @pytest.mark.parametrize("queries", [1, 4, LENGTH])
    def test_each_mask_matches_its_definition(self, queries):
        position = [query + LENGTH - queries for query in range(queries)]
        definitions = {
            "causal": lambda b, i, j: j <= position[i],
            "padding": lambda b, i, j: j < (4, 2)[b],
            "window": lambda b, i, j: position[i] - 2 <= j <= position[i] + 1,
            "prefix": lambda b, i, j: j < 3,
            "prefix by row": lambda b, i, j: j < (1, 4)[b],
            "documents": lambda b, i, j: IDS[b, position[i]].item() == IDS[b, j].item(),
        }
        for name, allowed in definitions.items():
            actual = dense_mask(MASKS[name], queries=queries)
            for b, h, i, j in product(*map(range, actual.shape)):
                assert actual[b, h, i, j].item() == allowed(b, i, j), (name, b, i, j)


class TestPacking:
    """Packed documents give the same result as separate ones."""

    LENGTHS = ((3, 2, 4), (1, 5, 3))

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("position", [None, Rotary(DIM), ALiBi(2)])
    def test_packed_documents_match_separate_ones(self, position, causal, backend):
        ids = torch.stack([torch.arange(3).repeat_interleave(torch.tensor(lengths)) for lengths in self.LENGTHS])
        tensors = tuple(x.requires_grad_() for x in inputs(queries=9, keys=9))
        mask = Causal() & Documents(ids) if causal else Documents(ids)
        packed = attend(*tensors, mask=mask, position=position, backend=backend).output
        alone = torch.zeros_like(packed)
        for row, lengths in enumerate(self.LENGTHS):
            begin = 0
            for length in lengths:
                document = (x[row : row + 1, :, begin : begin + length] for x in tensors)
                own = Causal() if causal else None
                result = attend(*document, mask=own, position=position, backend="reference").output
                alone[row, :, begin : begin + length] = result[0]
                begin += length
        assert_equal(packed, alone)
        for actual, expected in zip(grads(packed, tensors), grads(alone, tensors), strict=True):
            assert_equal(actual, expected)


STEPPED: dict[str, Mask] = {
    "causal": Causal(),
    "window": Window(2, 1),
    "documents": Documents(IDS),
    "causal documents": Causal() & Documents(IDS),
}


class TestStart:
    """`start` is the position of the first query."""

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("position", [None, Rotary(DIM), ALiBi(2)])
    @pytest.mark.parametrize("mask_name", STEPPED)
    def test_decoding_step_by_step_matches_the_full_pass(self, mask_name, position, backend):
        terms = {"mask": STEPPED[mask_name], "position": position, "backend": backend}
        query, key, value = inputs()
        full = attend(query, key, value, **terms).output
        for step in range(LENGTH):
            row = query[:, :, step : step + 1]
            for start in (step, torch.tensor(step), torch.tensor([step, step])):
                assert_equal(attend(row, key, value, **terms, start=start).output, full[:, :, step : step + 1])

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("position", [None, Rotary(DIM), ALiBi(2)])
    @pytest.mark.parametrize("mask_name", STEPPED)
    def test_each_batch_row_can_have_its_own_start(self, mask_name, position, backend):
        query, key, value = inputs()
        terms = {"mask": STEPPED[mask_name], "position": position, "backend": backend}
        full = attend(query, key, value, **terms).output
        starts = (1, 4)
        two = torch.stack([query[row, :, start : start + 2] for row, start in enumerate(starts)])
        result = attend(two, key, value, **terms, start=torch.tensor(starts)).output
        for row, start in enumerate(starts):
            assert_equal(result[row], full[row, :, start : start + 2])

    @pytest.mark.parametrize("backend", EAGER)
    def test_by_default_the_last_query_is_aligned_with_the_last_key(self, backend):
        query, key, value = inputs(queries=2)
        for mask in (Causal(), Window(2, 1), Documents(IDS)):
            assert_equal(
                attend(query, key, value, mask=mask, backend=backend).output,
                attend(query, key, value, mask=mask, backend=backend, start=LENGTH - 2).output,
            )

    def test_more_queries_than_keys_start_before_the_first_key(self):
        assert dense_mask(Causal(), queries=5, keys=3).equal(causal_by_hand(5, 3))
        assert not dense_mask(Causal(), queries=5, keys=3)[:, :, :2].any()


FULLY_MASKED = {  # each with its fully masked rows [batch, query], for 5 queries and 3 keys
    "causal": (Causal(), None, [[0, 1], [0, 1]]),
    "causal, all rows before the first key": (Causal(), -5, [[0, 1, 2, 3, 4]] * 2),
    "causal, one start per row": (Causal(), torch.tensor([-2, 0]), [[0, 1], []]),
    "padding": (Padding(torch.tensor([0, 2])), None, [[0, 1, 2, 3, 4], []]),
    "window": (Window(1, 0), 0, [[4], [4]]),
    "window, all rows far away": (Window(1, 1), 50, [[0, 1, 2, 3, 4]] * 2),
    "prefix": (Prefix(0), None, [[0, 1, 2, 3, 4]] * 2),
    "prefix by row": (Prefix(torch.tensor([2, 0])), None, [[], [0, 1, 2, 3, 4]]),
    "dense": (Dense(torch.tensor([1, 0, 1, 0, 1]).bool().view(1, 1, 5, 1)), None, [[1, 3], [1, 3]]),
    "causal and padding": (Causal() & Padding(torch.tensor([2, 0])), None, [[0, 1], [0, 1, 2, 3, 4]]),
    "causal or prefix": (Causal() | Prefix(torch.tensor([0, 1])), None, [[0, 1], []]),
    "not causal": (~Causal(), 0, [[2, 3, 4], [2, 3, 4]]),
}


class TestFullyMasked:
    """Fully masked queries have zero output and zero gradient."""

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("name", FULLY_MASKED)
    def test_only_fully_masked_rows_are_zero(self, name, backend):
        mask, start, empty = FULLY_MASKED[name]
        tensors = tuple(x.requires_grad_() for x in inputs(queries=5, keys=3))
        output = attend(*tensors, mask=mask, start=start, backend=backend).output
        actual = grads(output, tensors)
        for row, rows in enumerate(empty):
            full = [query for query in range(5) if query not in rows]
            assert (output[row, :, rows] == 0).all()
            assert (output[row, :, full] != 0).all()
            assert (actual[0][row, :, rows] == 0).all()
            if not full:
                assert all((grad[row] == 0).all() for grad in actual)
        assert all(grad.isfinite().all() for grad in actual)

    @pytest.mark.parametrize("backend", EAGER)
    def test_a_document_with_all_keys_masked_gives_zeros(self, backend):
        tensors = tuple(x.requires_grad_() for x in inputs())
        hidden = torch.zeros(2, 1, 1, LENGTH).bool()
        hidden[0, :, :, :3] = True  # the whole of the first row's document 0
        output = attend(*tensors, mask=Documents(IDS) & ~Dense(hidden), backend=backend).output
        actual = grads(output, tensors)
        assert (output[0, :, :3] == 0).all()
        assert (output[0, :, 3:] != 0).all()
        assert all((grad[0, :, :3] == 0).all() for grad in actual)
        assert all(grad.isfinite().all() for grad in actual)

    @pytest.mark.parametrize("align", ALIGNS)
    def test_holds_for_every_alignment(self, align):
        query, key, value = inputs()
        mask = Padding(torch.tensor([0, LENGTH]))
        tensors = tuple(x.requires_grad_() for x in (query, key, value))
        output = attend(*tensors, mask=mask, align=ALIGNS[align](MAKE)).output
        assert (output[0] == 0).all()
        assert (output[1] != 0).any()
        for grad in grads(output, tensors):
            assert (grad[0] == 0).all()
            assert grad.isfinite().all()

    @pytest.mark.parametrize("backend", EAGER)
    def test_without_keys_the_output_is_zero(self, backend):
        query, key, value = inputs(queries=2)
        output = attend(query, key[:, :, :0], value[:, :, :0], mask=Causal(), backend=backend).output
        assert output.equal(torch.zeros(2, 2, 2, 3, dtype=torch.float64))


class TestMaskedKeys:
    """Masked keys affect neither output nor gradients."""

    @pytest.mark.parametrize("mask_name", MASKS)
    @pytest.mark.parametrize(
        ("score", "backend"), [("scaled dot", "reference"), ("scaled dot", "sdpa"), ("additive", "auto")]
    )
    def test_masked_values_change_nothing(self, score, backend, mask_name):
        terms = {"mask": MASKS[mask_name], "score": SCORES[score](MAKE), "backend": backend}
        allowed = dense_mask(MASKS[mask_name])
        clean = inputs()
        for step in range(LENGTH):
            hidden = ~allowed[:, :, step, :, None]
            dirty = (clean[0], *(x.masked_fill(hidden, 1e4) for x in clean[1:]))
            (output, actual), (expected, truth) = (self._row(step, tensors, terms) for tensors in (dirty, clean))
            assert_equal(output, expected)
            for grad, expected_grad in zip(actual, truth, strict=True):
                assert_equal(grad, expected_grad)
            for grad in actual[1:]:
                assert (grad.masked_select(hidden) == 0).all()

    @staticmethod
    def _row(step: int, tensors: tuple[Tensor, ...], terms: dict[str, object]) -> tuple[Tensor, tuple[Tensor, ...]]:
        tensors = tuple(x.clone().requires_grad_() for x in tensors)
        output = attend(*tensors, **terms).output[:, :, step]
        return output.detach(), grads(output, tensors)

    @pytest.mark.parametrize("align", ALIGNS)
    def test_holds_for_every_alignment(self, align):
        terms = {"mask": Padding(torch.tensor([4, 2])), "align": ALIGNS[align](MAKE)}
        query, key, value = inputs()
        hidden = ~dense_mask(Padding(torch.tensor([4, 2])))[:, :, :1].transpose(2, 3)
        dirty = (query, key.masked_fill(hidden, 1e4), value.masked_fill(hidden, -1e4))
        for step in range(LENGTH):
            (output, actual), (expected, truth) = (self._row(step, x, terms) for x in (dirty, (query, key, value)))
            assert_equal(output, expected)
            for grad, expected_grad in zip(actual, truth, strict=True):
                assert_equal(grad, expected_grad)

    @pytest.mark.parametrize("mask_name", [None, *MASKS])
    @pytest.mark.parametrize(("score", "backend"), [("cosine", "reference"), ("cosine", "sdpa"), ("additive", "auto")])
    def test_rows_of_a_batch_do_not_influence_each_other(self, score, backend, mask_name):
        terms = {
            "mask": None if mask_name is None else MASKS[mask_name],
            "score": SCORES[score](MAKE),
            "backend": backend,
        }
        tensors = tuple(x.requires_grad_() for x in inputs())
        full = attend(*tensors, **terms).output
        others = tuple(torch.cat((x[:1], 30 * x[1:].flip(2) + 5)).detach() for x in tensors)
        changed = attend(*others, **terms).output
        assert_equal(changed[0], full[0])
        assert differ(changed[1], full[1])
        for grad in grads(full[0], tensors):
            assert (grad[1] == 0).all()

    def test_heads_do_not_influence_each_other(self):
        query, key, value = inputs()
        full = attend(query, key, value, mask=Causal(), score=Cosine(heads=2).double()).output
        for head in range(2):
            alone = (x[:, head : head + 1] for x in (query, key, value))
            assert_equal(attend(*alone, mask=Causal(), score=Cosine().double()).output, full[:, head : head + 1])

"""What is true of attention whatever its numbers: of masks, orders, batches and limits."""

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
from qkv.attention.extent import Extent
from qkv.attention.operator import build_request
from qkv.attention.position import Bias
from tests.attention.terms import ALIGNS, SCORES, Make, Sizes

EAGER = ("reference", "sdpa")
LENGTH, DIM = 6, 8
SQUARE = Sizes(batch=2, heads=2, kv_heads=2, queries=LENGTH, keys=LENGTH, dim=DIM, value_dim=3)
MAKE = Make(SQUARE, torch.float64, torch.float64)

SERVED = [  # each score, on each backend that serves it
    (score, backend)
    for score, backend in product(SCORES, EAGER)
    if backend == "reference" or score in ("dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine")
]
LOOKS_AT_KEYS = [(score, backend) for score, backend in SERVED if score != "location"]
SUM_TO_ONE = ("softmax", "softmax, cooler", "uniform", "hard", "sparsemax", "entmax 1.5", "entmax 1.25")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors this small are computed sooner by one thread than two can agree on who does what."""
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


def assert_equal(found: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def differ(one: Tensor, other: Tensor) -> bool:
    return (one - other).abs().max().item() > 1e-3


def slopes(output: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of a sum whose terms all differ, so that no error can cancel."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * weight).sum(), tensors, allow_unused=True, materialize_grads=True)


def seen(
    mask: Mask, batch: int = 2, queries: int = LENGTH, keys: int = LENGTH, heads: int = 2, **where: object
) -> Tensor:
    """What a mask allows, at every cell."""
    extent = Extent(batch, heads, queries, keys, torch.device("cpu"), **where)
    return mask.materialise(extent).expand(batch, heads, queries, keys)


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
    """No query knows what comes after it."""

    @pytest.mark.parametrize(("score", "backend"), SERVED)
    def test_causal_masking_equals_recomputing_each_prefix_for_every_score(self, score, backend):
        terms = {"score": SCORES[score](MAKE), "mask": Causal(), "backend": backend}
        query, key, value = inputs()
        whole = attend(query, key, value, **terms).output
        for end in range(1, LENGTH + 1):
            prefix = attend(*(x[:, :, :end] for x in (query, key, value)), **terms).output
            assert_equal(prefix, whole[:, :, :end])
            last = attend(query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end], **terms).output
            assert_equal(last, whole[:, :, end - 1 : end])

    @pytest.mark.parametrize("backend", EAGER)
    def test_no_gradient_flows_back_from_what_came_before(self, backend):
        query, key, value = (x.requires_grad_() for x in inputs())
        output = attend(query, key, value, mask=Causal(), backend=backend).output
        for step in range(LENGTH):
            _, to_key, to_value = torch.autograd.grad(output[:, :, step].sum(), (query, key, value), retain_graph=True)
            assert (to_key[:, :, step + 1 :] == 0).all()
            assert (to_value[:, :, step + 1 :] == 0).all()
            assert (to_value[:, :, : step + 1] != 0).all()


class TestOrder:
    """Without positions, attention reads a set."""

    ORDER = torch.tensor([4, 0, 5, 2, 1, 3])

    @pytest.mark.parametrize(("score", "backend"), LOOKS_AT_KEYS)
    def test_self_attention_without_positions_permutes_as_its_input_does(self, score, backend):
        terms = {"score": SCORES[score](MAKE), "backend": backend}
        x = MAKE.tensor(2, 2, LENGTH, DIM)
        read = attend(x, x, x, **terms).output
        moved = x[:, :, self.ORDER]
        assert_equal(attend(moved, moved, moved, **terms).output, read[:, :, self.ORDER])
        assert differ(read, read[:, :, self.ORDER])

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("position", [Rotary(DIM), ALiBi(2)])
    def test_self_attention_with_positions_inside_does_not(self, position, backend):
        x = MAKE.tensor(2, 2, LENGTH, DIM)
        read = attend(x, x, x, position=position, backend=backend).output
        moved = x[:, :, self.ORDER]
        assert differ(attend(moved, moved, moved, position=position, backend=backend).output, read[:, :, self.ORDER])

    @pytest.mark.parametrize("backend", EAGER)
    def test_self_attention_with_positions_added_does_not(self, backend):
        x, places = MAKE.tensor(2, 2, LENGTH, DIM), Sinusoidal(DIM)(LENGTH).double()
        read = attend(*(x + places,) * 3, backend=backend).output
        moved = x[:, :, self.ORDER] + places
        assert differ(attend(moved, moved, moved, backend=backend).output, read[:, :, self.ORDER])

    def test_a_score_of_places_does_not(self):
        made = SCORES["location"](MAKE)
        x = MAKE.tensor(2, 2, LENGTH, DIM)
        moved = x[:, :, self.ORDER]
        assert differ(
            attend(moved, moved, moved, score=made).output, attend(x, x, x, score=made).output[:, :, self.ORDER]
        )

    @pytest.mark.parametrize(("score", "backend"), LOOKS_AT_KEYS)
    def test_cross_attention_does_not_care_in_which_order_keys_come_with_their_values(self, score, backend):
        terms = {"score": SCORES[score](MAKE), "backend": backend}
        query, key, value = inputs(queries=3)
        moved = attend(query, key[:, :, self.ORDER], value[:, :, self.ORDER], **terms).output
        assert_equal(moved, attend(query, key, value, **terms).output)

    @pytest.mark.parametrize("align", SUM_TO_ONE)
    def test_no_alignment_over_all_keys_cares_about_their_order(self, align):
        query, key, value = inputs(queries=3)
        terms = {"align": ALIGNS[align](MAKE), "backend": "reference"}
        moved = attend(query, key[:, :, self.ORDER], value[:, :, self.ORDER], **terms).output
        assert_equal(moved, attend(query, key, value, **terms).output, atol=1e-10)


class Lift(Position):
    """Adds a number to all scores of a row, another one for each row."""

    biases = True

    def bias(self, query: Tensor, extent: Extent) -> Bias:
        return lambda at: (100.0 * at.query - 37.0 * at.head + 11.0 * at.batch).to(query.dtype)


class TestWeights:
    """What alignments have in common."""

    @pytest.mark.parametrize("masked", [None, *MASKS])
    @pytest.mark.parametrize("align", SUM_TO_ONE)
    def test_weights_are_shares_of_one_among_the_keys_that_are_seen(self, align, masked):
        mask = None if masked is None else MASKS[masked]
        weights = attend(*inputs(), mask=mask, align=ALIGNS[align](MAKE), need_weights=True).weights
        allowed = torch.ones_like(weights).bool() if mask is None else seen(mask)
        assert (weights >= 0).all()
        assert (weights[~allowed] == 0).all()
        assert_equal(weights.sum(dim=-1), allowed.any(dim=-1).double())

    @pytest.mark.parametrize("mask", [None, MASKS["causal"], MASKS["documents"]])
    @pytest.mark.parametrize(
        "align", [Softmax(), Softmax(0.5), Uniform(), Sparsemax(), Entmax(1.5), Entmax(1.25), Hard().eval()]
    )
    def test_a_number_added_to_all_scores_of_a_row_changes_nothing(self, align, mask):
        terms = {"score": Dot(), "align": align, "mask": mask}
        plain = attend(*inputs(), **terms, need_weights=True)
        for backend in EAGER:
            if BACKENDS[backend].supports(build_request(*inputs(), **terms)) is None:
                lifted = attend(*inputs(), **terms, position=Lift(), backend=backend, need_weights=True)
                assert_equal(lifted.output, plain.output, atol=1e-10)
                assert_equal(lifted.weights, plain.weights, atol=1e-10)

    @pytest.mark.parametrize("masked", [None, *MASKS])
    @pytest.mark.parametrize("align", SUM_TO_ONE)
    def test_what_is_read_lies_among_the_values_that_are_seen(self, align, masked):
        mask, value = None if masked is None else MASKS[masked], inputs()[2]
        allowed = torch.ones(2, 2, LENGTH, LENGTH).bool() if mask is None else seen(mask)
        terms = {"mask": mask, "align": ALIGNS[align](MAKE)}
        for backend in EAGER:
            if BACKENDS[backend].supports(build_request(*inputs(), **terms)) is not None:
                continue
            output = attend(*inputs(), **terms, backend=backend).output
            for b, h, q in product(range(2), range(2), range(LENGTH)):
                among = value[b, h, allowed[b, h, q]]
                if len(among) == 0:
                    assert (output[b, h, q] == 0).all()
                    continue
                assert (output[b, h, q] >= among.amin(dim=0) - 1e-12).all()
                assert (output[b, h, q] <= among.amax(dim=0) + 1e-12).all()

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("masked", [None, *MASKS])
    def test_a_cold_softmax_nears_hard_attention_and_a_hot_one_the_mean(self, masked, backend):
        terms = {"mask": None if masked is None else MASKS[masked]}
        hard = attend(*inputs(), **terms, align=Hard().eval()).output
        mean = attend(*inputs(), **terms, align=Uniform()).output
        cold = [attend(*inputs(), **terms, align=Softmax(t), backend=backend).output for t in (1e-1, 1e-2, 1e-4)]
        hot = [attend(*inputs(), **terms, align=Softmax(t), backend=backend).output for t in (1e1, 1e3, 1e8)]
        for nearing, limit in ((cold, hard), (hot, mean)):
            distances = [(one - limit).abs().max().item() for one in nearing]
            assert distances[0] > distances[1] > distances[2]
            assert distances[2] < 1e-7

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("masked", MASKS)
    def test_uniform_attention_is_the_mean_of_the_values_that_are_seen(self, masked, backend):
        query, key, value = inputs()
        allowed = seen(MASKS[masked])
        output = attend(query, key, value, mask=MASKS[masked], align=Uniform(), backend=backend).output
        for b, h, q in product(range(2), range(2), range(LENGTH)):
            among = value[b, h, allowed[b, h, q]]
            expected = among.mean(dim=0) if len(among) else torch.zeros(3, dtype=torch.float64)
            assert_equal(output[b, h, q], expected)

    def test_uniform_attention_does_not_care_what_queries_and_keys_are(self):
        query, key, value = inputs()
        assert_equal(
            attend(1e6 * query, key, value, align=Uniform()).output, attend(query, -key, value, align=Uniform()).output
        )

    @pytest.mark.parametrize("backend", EAGER)
    def test_no_dropout_is_no_dropout_and_draws_nothing(self, backend):
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
    """Masks are sets of cells, and combine as sets do."""

    @pytest.mark.parametrize("name", MASKS)
    def test_masks_obey_de_morgan(self, name):
        a = MASKS[name]
        for b in MASKS.values():
            assert seen(~(a & b)).equal(seen(~a | ~b))
            assert seen(~(a | b)).equal(seen(~a & ~b))
            assert seen(~(a & b)).equal(~(seen(a) & seen(b)))

    @pytest.mark.parametrize("name", MASKS)
    def test_a_mask_and_its_opposite_leave_nothing_and_together_everything(self, name):
        assert not seen(MASKS[name] & ~MASKS[name]).any()
        assert seen(MASKS[name] | ~MASKS[name]).all()
        assert 0 < seen(MASKS[name]).sum() < 2 * 2 * LENGTH * LENGTH  # or this file would test nothing with it

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
    def test_masks_that_mean_the_same_read_the_same(self, mask, same, queries, backend):
        read, expected = (attend(*inputs(queries=queries), mask=m, backend=backend).output for m in (mask, same))
        assert_equal(read, expected)

    @pytest.mark.parametrize("queries", [1, 4, LENGTH])
    def test_each_mask_is_its_sentence(self, queries):
        place = [query + LENGTH - queries for query in range(queries)]
        sentences = {
            "causal": lambda b, i, j: j <= place[i],
            "padding": lambda b, i, j: j < (4, 2)[b],
            "window": lambda b, i, j: place[i] - 2 <= j <= place[i] + 1,
            "prefix": lambda b, i, j: j < 3,
            "prefix by row": lambda b, i, j: j < (1, 4)[b],
            "documents": lambda b, i, j: IDS[b, place[i]].item() == IDS[b, j].item(),
        }
        for name, allowed in sentences.items():
            found = seen(MASKS[name], queries=queries)
            for b, h, i, j in product(*map(range, found.shape)):
                assert found[b, h, i, j].item() == allowed(b, i, j), (name, b, i, j)


class TestPacking:
    """Documents packed into one sequence read as each alone."""

    LENGTHS = ((3, 2, 4), (1, 5, 3))

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("position", [None, Rotary(DIM), ALiBi(2)])
    def test_packed_documents_read_and_learn_as_each_alone(self, position, causal, backend):
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
                read = attend(*document, mask=own, position=position, backend="reference").output
                alone[row, :, begin : begin + length] = read[0]
                begin += length
        assert_equal(packed, alone)
        for found, expected in zip(slopes(packed, tensors), slopes(alone, tensors), strict=True):
            assert_equal(found, expected)


STEPPED: dict[str, Mask] = {
    "causal": Causal(),
    "window": Window(2, 1),
    "documents": Documents(IDS),
    "causal documents": Causal() & Documents(IDS),
}


class TestStart:
    """`start` says where the first query stands."""

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("position", [None, Rotary(DIM), ALiBi(2)])
    @pytest.mark.parametrize("masked", STEPPED)
    def test_decoding_row_by_row_equals_the_full_pass(self, masked, position, backend):
        terms = {"mask": STEPPED[masked], "position": position, "backend": backend}
        query, key, value = inputs()
        whole = attend(query, key, value, **terms).output
        for step in range(LENGTH):
            row = query[:, :, step : step + 1]
            for start in (step, torch.tensor(step), torch.tensor([step, step])):
                assert_equal(attend(row, key, value, **terms, start=start).output, whole[:, :, step : step + 1])

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("position", [None, Rotary(DIM), ALiBi(2)])
    @pytest.mark.parametrize("masked", STEPPED)
    def test_each_row_of_a_batch_may_stand_elsewhere(self, masked, position, backend):
        query, key, value = inputs()
        terms = {"mask": STEPPED[masked], "position": position, "backend": backend}
        whole = attend(query, key, value, **terms).output
        starts = (1, 4)
        two = torch.stack([query[row, :, start : start + 2] for row, start in enumerate(starts)])
        read = attend(two, key, value, **terms, start=torch.tensor(starts)).output
        for row, start in enumerate(starts):
            assert_equal(read[row], whole[row, :, start : start + 2])

    @pytest.mark.parametrize("backend", EAGER)
    def test_unless_it_is_given_the_last_query_stands_at_the_last_key(self, backend):
        query, key, value = inputs(queries=2)
        for mask in (Causal(), Window(2, 1), Documents(IDS)):
            assert_equal(
                attend(query, key, value, mask=mask, backend=backend).output,
                attend(query, key, value, mask=mask, backend=backend, start=LENGTH - 2).output,
            )

    def test_more_queries_than_keys_begin_before_the_first_key(self):
        assert seen(Causal(), queries=5, keys=3).equal(causal_by_hand(5, 3))
        assert not seen(Causal(), queries=5, keys=3)[:, :, :2].any()


NOTHING = {  # each with the rows [batch, query] that see nothing, of 5 queries and 3 keys
    "causal": (Causal(), None, [[0, 1], [0, 1]]),
    "causal, all rows before the first key": (Causal(), -5, [[0, 1, 2, 3, 4]] * 2),
    "causal, rows that stand elsewhere": (Causal(), torch.tensor([-2, 0]), [[0, 1], []]),
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


class TestNothingToSee:
    """A query that may see nothing reads zeros, and sends back none but zero gradients."""

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("named", NOTHING)
    def test_rows_that_see_nothing_are_zeros_and_the_others_are_not(self, named, backend):
        mask, start, empty = NOTHING[named]
        tensors = tuple(x.requires_grad_() for x in inputs(queries=5, keys=3))
        output = attend(*tensors, mask=mask, start=start, backend=backend).output
        found = slopes(output, tensors)
        for row, rows in enumerate(empty):
            full = [query for query in range(5) if query not in rows]
            assert (output[row, :, rows] == 0).all()
            assert (output[row, :, full] != 0).all()
            assert (found[0][row, :, rows] == 0).all()
            if not full:
                assert all((slope[row] == 0).all() for slope in found)
        assert all(slope.isfinite().all() for slope in found)

    @pytest.mark.parametrize("backend", EAGER)
    def test_a_document_whose_keys_are_all_hidden_reads_zeros(self, backend):
        tensors = tuple(x.requires_grad_() for x in inputs())
        hidden = torch.zeros(2, 1, 1, LENGTH).bool()
        hidden[0, :, :, :3] = True  # the whole of the first row's document 0
        output = attend(*tensors, mask=Documents(IDS) & ~Dense(hidden), backend=backend).output
        found = slopes(output, tensors)
        assert (output[0, :, :3] == 0).all()
        assert (output[0, :, 3:] != 0).all()
        assert all((slope[0, :, :3] == 0).all() for slope in found)
        assert all(slope.isfinite().all() for slope in found)

    @pytest.mark.parametrize("align", ALIGNS)
    def test_so_it_is_for_every_alignment(self, align):
        query, key, value = inputs()
        mask = Padding(torch.tensor([0, LENGTH]))
        tensors = tuple(x.requires_grad_() for x in (query, key, value))
        output = attend(*tensors, mask=mask, align=ALIGNS[align](MAKE)).output
        assert (output[0] == 0).all()
        assert (output[1] != 0).any()
        for slope in slopes(output, tensors):
            assert (slope[0] == 0).all()
            assert slope.isfinite().all()

    @pytest.mark.parametrize("backend", EAGER)
    def test_no_keys_at_all_read_zeros(self, backend):
        query, key, value = inputs(queries=2)
        output = attend(query, key[:, :, :0], value[:, :, :0], mask=Causal(), backend=backend).output
        assert output.equal(torch.zeros(2, 2, 2, 3, dtype=torch.float64))


class TestBehindAMask:
    """What a query may not see does not change what it reads or learns."""

    @pytest.mark.parametrize("masked", MASKS)
    @pytest.mark.parametrize(
        ("score", "backend"), [("scaled dot", "reference"), ("scaled dot", "sdpa"), ("additive", "auto")]
    )
    def test_garbage_behind_a_mask_changes_nothing(self, score, backend, masked):
        terms = {"mask": MASKS[masked], "score": SCORES[score](MAKE), "backend": backend}
        allowed = seen(MASKS[masked])
        clean = inputs()
        for step in range(LENGTH):
            behind = ~allowed[:, :, step, :, None]
            dirty = (clean[0], *(x.masked_fill(behind, 1e4) for x in clean[1:]))
            (output, found), (expected, truth) = (self._row(step, tensors, terms) for tensors in (dirty, clean))
            assert_equal(output, expected)
            for slope, other in zip(found, truth, strict=True):
                assert_equal(slope, other)
            for slope in found[1:]:
                assert (slope.masked_select(behind) == 0).all()

    @staticmethod
    def _row(step: int, tensors: tuple[Tensor, ...], terms: dict[str, object]) -> tuple[Tensor, tuple[Tensor, ...]]:
        tensors = tuple(x.clone().requires_grad_() for x in tensors)
        output = attend(*tensors, **terms).output[:, :, step]
        return output.detach(), slopes(output, tensors)

    @pytest.mark.parametrize("align", ALIGNS)
    def test_so_it_is_for_every_alignment(self, align):
        terms = {"mask": Padding(torch.tensor([4, 2])), "align": ALIGNS[align](MAKE)}
        query, key, value = inputs()
        behind = ~seen(Padding(torch.tensor([4, 2])))[:, :, :1].transpose(2, 3)
        dirty = (query, key.masked_fill(behind, 1e4), value.masked_fill(behind, -1e4))
        for step in range(LENGTH):
            (output, found), (expected, truth) = (self._row(step, x, terms) for x in (dirty, (query, key, value)))
            assert_equal(output, expected)
            for slope, other in zip(found, truth, strict=True):
                assert_equal(slope, other)

    @pytest.mark.parametrize("masked", [None, *MASKS])
    @pytest.mark.parametrize(("score", "backend"), [("cosine", "reference"), ("cosine", "sdpa"), ("additive", "auto")])
    def test_rows_of_a_batch_do_not_influence_each_other(self, score, backend, masked):
        terms = {"mask": None if masked is None else MASKS[masked], "score": SCORES[score](MAKE), "backend": backend}
        tensors = tuple(x.requires_grad_() for x in inputs())
        whole = attend(*tensors, **terms).output
        others = tuple(torch.cat((x[:1], 30 * x[1:].flip(2) + 5)).detach() for x in tensors)
        changed = attend(*others, **terms).output
        assert_equal(changed[0], whole[0])
        assert differ(changed[1], whole[1])
        for slope in slopes(whole[0], tensors):
            assert (slope[1] == 0).all()

    def test_so_it_is_for_heads(self):
        query, key, value = inputs()
        whole = attend(query, key, value, mask=Causal(), score=Cosine(heads=2).double()).output
        for head in range(2):
            alone = (x[:, head : head + 1] for x in (query, key, value))
            assert_equal(attend(*alone, mask=Causal(), score=Cosine().double()).output, whole[:, head : head + 1])

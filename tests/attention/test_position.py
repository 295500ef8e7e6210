"""Positions: what each promises by itself, and what all of them promise inside the operator."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.attention.backends import BACKENDS
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.encoding import Learned, Sinusoidal
from qkv.attention.extent import Cells, Extent
from qkv.attention.mask import Causal, Padding
from qkv.attention.operator import Attend, attend, build_request
from qkv.attention.position import ALiBi, Position, Rotary
from qkv.attention.relative import Relative, TreeRelative
from qkv.attention.spec import Backend, Request
from qkv.attention.tree import Trees
from qkv.errors import InputError, ShapeError

BATCH, HEADS, LENGTH, DIM = 2, 4, 6, 8
HEADS_OF_WORDS = torch.tensor([[3, 3, 4, 0, 6, 4], [0, 1, 2, 2, 1, 5]])


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def qkv_heads(kv_heads: int = HEADS) -> list[Tensor]:
    """Queries, keys and values."""
    return [randn(BATCH, heads, LENGTH, DIM) for heads in (HEADS, kv_heads, kv_heads)]


def serving(request: Request) -> list[Backend]:
    """The backends that compute a request, but for those that compile: see `UNCHECKED`."""
    return [REFERENCE] if request.position.reads else [BACKENDS["sdpa"], REFERENCE]


class Along:
    """A position for a whole sequence, and for part of its queries and keys."""

    def __init__(self, term: Position) -> None:
        self.term = term
        self.distances = Trees.of_heads(HEADS_OF_WORDS).path() if isinstance(term, TreeRelative) else None

    def at(self, places: Tensor | slice = slice(None), keys: int = LENGTH) -> Position:
        """For the queries at some places, the same of each row or those of each, and the first keys."""
        if self.distances is None:
            return self.term
        if isinstance(places, Tensor):
            return self.term.between(self.distances[torch.arange(BATCH), places][:, None, :keys])
        return self.term.between(self.distances[:, places, :keys])


POSITIONS = {
    "rotary": lambda: Rotary(DIM),
    "ALiBi": lambda: ALiBi(HEADS),
    "relative": lambda: Relative(DIM, 2).double(),
    "relative, keys only": lambda: Relative(DIM, 2, values=False).double(),
    "tree": lambda: TreeRelative(DIM, 2).double(),
    "tree, keys only": lambda: TreeRelative(DIM, 2, values=False).double(),
}


@pytest.fixture(params=POSITIONS)
def along(request: pytest.FixtureRequest) -> Along:
    torch.manual_seed(0)
    return Along(POSITIONS[request.param]())


class TestEveryPosition:
    """What holds whichever term it is."""

    def test_changes_what_is_read(self, along):
        inputs = qkv_heads()
        assert not torch.allclose(attend(*inputs, position=along.at()).output, attend(*inputs).output, atol=1e-3)

    @pytest.mark.parametrize("heads", [None, [3, 1]])
    @pytest.mark.parametrize("queries", [None, [4, 0, 5], [2]])
    @pytest.mark.parametrize("start", [None, 1, torch.tensor([0, 2])])
    def test_gives_the_same_rows_when_only_some_are_rebuilt(self, along, heads, queries, start):
        request = build_request(*qkv_heads(kv_heads=2), position=along.at(), mask=Causal(), start=start)
        part = request.of(*(None if chosen is None else tuple(chosen) for chosen in (heads, queries)))
        weights, _ = REFERENCE.weights(request)
        rows = slice(None) if queries is None else queries
        seen = (lambda x: x[:, :, rows]) if heads is None else (lambda x: x[:, heads][:, :, rows])
        torch.testing.assert_close(REFERENCE.weights(part)[0], seen(weights))
        torch.testing.assert_close(REFERENCE.run(part).output, seen(REFERENCE.run(request).output))

    def test_decodes_one_query_at_a_time_over_growing_keys_as_in_one_pass(self, along):
        query, key, value = qkv_heads()
        whole = attend(query, key, value, position=along.at(), mask=Causal()).output
        for place in range(LENGTH):
            now = slice(place, place + 1)
            known = slice(place + 1)
            step = attend(
                query[:, :, now], key[:, :, known], value[:, :, known], position=along.at(now, place + 1), mask=Causal()
            )
            torch.testing.assert_close(step.output, whole[:, :, now])

    def test_decodes_with_keys_that_were_prepared_one_by_one_as_in_one_pass(self, along):
        query, key, value = qkv_heads()
        module = Attend(position=along.at())
        whole = module(query, key, value, mask=Causal()).output
        parts = [module.keys(key[:, :, place : place + 1], start=place) for place in range(LENGTH)]
        keys = type(parts[0])(torch.cat([part.tensor for part in parts], dim=2))
        for place in range(LENGTH):
            now = slice(place, place + 1)
            for start in (place, torch.tensor(place), torch.tensor([place, place])):
                step = module(query[:, :, now], keys, value, mask=Causal(), position=along.at(now), start=start)
                torch.testing.assert_close(step.output, whole[:, :, now])

    def test_lets_each_row_stand_at_a_place_of_its_own(self, along):
        query, key, value = qkv_heads()
        whole = attend(query, key, value, position=along.at(), mask=Causal()).output
        places = torch.tensor([4, 1])
        rows = torch.arange(BATCH)
        read = attend(
            query[rows, :, places][:, :, None], key, value, position=along.at(places), mask=Causal(), start=places
        )
        torch.testing.assert_close(read.output[:, :, 0], whole[rows, :, places])

    def test_gives_zeros_and_no_gradient_for_a_row_that_sees_nothing(self, along):
        inputs = [x.requires_grad_() for x in qkv_heads()]
        position = along.at()
        learned = [*inputs, *(along.term.parameters() if isinstance(along.term, nn.Module) else [])]
        slope = randn(BATCH, HEADS, LENGTH, DIM)
        alone = attend(*(x[1:] for x in inputs), position=only_row(position, 1), mask=Padding(torch.tensor([5]))).output
        expected = torch.autograd.grad((alone * slope[1:]).sum(), learned)
        request = build_request(*inputs, position=position, mask=Padding(torch.tensor([0, 5])))
        for backend in serving(request):
            output = backend.run(request).output
            assert (output[0] == 0).all()
            found = torch.autograd.grad((output * slope).sum(), learned)
            for one, other in zip(found, expected, strict=True):  # what sees nothing also teaches nothing
                torch.testing.assert_close(one, other)
            assert all((one[0] == 0).all() for one in found[:3])

    def test_has_gradients_that_pass_the_numerical_check(self, along):
        inputs = [x[:, :, :3].clone().requires_grad_() for x in qkv_heads()]
        weights = list(along.term.parameters()) if isinstance(along.term, nn.Module) else []
        position = along.at(slice(3), 3)
        assert torch.autograd.gradcheck(
            lambda q, k, v, *_: attend(q, k, v, position=position, mask=Padding(torch.tensor([3, 2]))).output,
            (*inputs, *weights),
            fast_mode=True,
        )

    @torch.no_grad()
    def test_stays_near_the_truth_in_low_precision(self, along):
        inputs = qkv_heads()
        truth = attend(*inputs, position=along.at(), mask=Causal()).output
        if isinstance(along.term, nn.Module):
            along.term.bfloat16()
        request = build_request(*(x.bfloat16() for x in inputs), position=along.at(), mask=Causal())
        for backend in serving(request):
            found = backend.run(request).output
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.double(), truth, rtol=0, atol=8 * torch.finfo(torch.bfloat16).eps)

    def test_is_defined_far_beyond_any_length_it_was_made_for(self, along):
        assert along.at().extrapolates
        if along.distances is not None:
            along.distances = along.distances * 1000
        read = attend(*qkv_heads(), position=along.at(), start=100_000)
        assert read.output.isfinite().all()


# What checks shapes in tests cannot be compiled: this runs in a process of its own.
UNCHECKED = """
import torch
from qkv.attention.backends import BACKENDS
from qkv.attention.mask import Causal
from qkv.attention.operator import attend, build_request
from qkv.attention.position import ALiBi, Rotary
from qkv.attention.relative import Relative, TreeRelative

torch.manual_seed(0)
inputs = [torch.randn(2, 4, 6, 8) for _ in range(3)]
distances = torch.randint(-3, 4, (2, 6, 6))
tree = TreeRelative(8, 2, values=False)
start = torch.tensor([0, 2])
for term in (Rotary(8), ALiBi(4), Relative(8, 2), Relative(8, 2, values=False), tree):

    def run(query, key, value, backend="auto"):
        position = term.between(distances) if term is tree else term
        return attend(query, key, value, position=position, mask=Causal(), start=start, backend=backend).output

    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(*inputs), run(*inputs))
    with torch.no_grad():
        request = build_request(*inputs, position=term.between(distances) if term is tree else term)
        able = [name for name, backend in BACKENDS.items() if backend.supports(request) is None]
        for backend in able:
            torch.testing.assert_close(run(*inputs, backend=backend), run(*inputs, backend="reference"))
    print(type(term).__name__, *sorted(able))
"""


def test_every_position_compiles_as_one_graph_and_means_the_same_to_every_backend():
    done = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, check=False)
    every = "flex reference sdpa"
    assert done.stdout.splitlines() == [
        f"Rotary {every}", f"ALiBi {every}", "Relative reference", f"Relative {every}", f"TreeRelative {every}",
    ], done.stderr[-2000:]  # fmt: skip


def only_row(position: Position, row: int) -> Position:
    """The position for one row of the batch."""
    if isinstance(position, Rotary | ALiBi | Relative):
        return position
    return position.term.between(position.distances[row : row + 1, 0])


class TestRotary:
    """Su et al. 2021."""

    @settings(max_examples=20, deadline=None)
    @given(offset=st.integers(0, 5000), dim=st.sampled_from([2, 6, 64]), seed=st.integers(0, 2**16))
    def test_leaves_only_distances_in_the_scores(self, offset, dim, seed):
        torch.manual_seed(seed)
        query, key = randn(1, 2, 4, dim), randn(1, 2, 7, dim)
        rotary = Rotary(dim)

        def scores(offset: int) -> Tensor:
            turned = [rotary.turn(x, offset + torch.arange(x.shape[2])[None]) for x in (query, key)]
            return turned[0] @ turned[1].transpose(-1, -2)

        torch.testing.assert_close(scores(offset), scores(0))

    def test_equals_a_rotation_matrix_for_each_pair_of_features(self):
        torch.manual_seed(0)
        dim, base = 6, 100.0
        x = randn(1, 1, 5, dim)
        found = Rotary(dim, base).turn(x, torch.tensor([[0, 1, 2, 50, 9]]))
        for index, place in enumerate([0, 1, 2, 50, 9]):
            matrix = torch.zeros(dim, dim, dtype=torch.float64)
            for pair in range(dim // 2):
                angle = torch.tensor(place * base ** (-2 * pair / dim), dtype=torch.float64)
                one, other = pair, pair + dim // 2
                matrix[one, one] = matrix[other, other] = angle.cos()
                matrix[one, other], matrix[other, one] = -angle.sin(), angle.sin()
            torch.testing.assert_close(found[0, 0, index], matrix @ x[0, 0, index])

    def test_keeps_the_length_of_every_vector(self):
        x = randn(2, 3, 5, 8)
        turned = Rotary(8).turn(x, torch.arange(5)[None] + torch.tensor([[0], [77]]))
        torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))

    def test_turns_by_the_angles_of_the_sinusoidal_positions(self):
        ones_and_zeros = torch.cat((torch.ones(1, 1, 30, 4), torch.zeros(1, 1, 30, 4)), dim=-1).double()
        cos, sin = Rotary(8).turn(ones_and_zeros, torch.arange(30)[None])[0, 0].chunk(2, dim=-1)
        table = Sinusoidal(8).double()(30)
        torch.testing.assert_close(table, torch.stack((sin, cos), dim=-1).flatten(1))

    def test_knows_late_places_in_low_precision(self):
        torch.manual_seed(0)
        x = randn(1, 1, 4, 8)
        places = torch.tensor([[1000, 1001, 1002, 1003]])  # bfloat16 has no number between 1000 and 1004
        truth = Rotary(8).turn(x, places)
        torch.testing.assert_close(Rotary(8).turn(x.bfloat16(), places).double(), truth, rtol=0, atol=0.03)

    @pytest.mark.parametrize("dim", [0, 7, -2])
    def test_needs_pairs_of_features(self, dim):
        with pytest.raises(InputError, match=f"even and positive, not {dim}"):
            Rotary(dim)

    def test_refuses_heads_of_another_size_and_a_base_that_is_none(self):
        with pytest.raises(ShapeError, match="heads of 8 features, but they have 6"):
            Rotary(8).turn(randn(1, 1, 2, 6), torch.arange(2)[None])
        with pytest.raises(InputError, match="must be positive"):
            Rotary(8, base=0.0)


class TestALiBi:
    """Press, Smith and Lewis 2022."""

    @pytest.mark.parametrize(
        ("heads", "powers"),
        [
            (8, [1, 2, 3, 4, 5, 6, 7, 8]),  # 1/2, 1/4 ... 1/256
            (16, [h / 2 for h in range(1, 17)]),
            (1, [8]),
            (4, [2, 4, 6, 8]),
            (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),  # those of 8, then every second one of 16
            (3, [4, 8, 2]),
        ],
    )
    def test_has_the_slopes_of_the_paper(self, heads, powers):
        slopes = ALiBi(heads).slopes(torch.device("cpu"), torch.float64)
        assert slopes.tolist() == pytest.approx([2.0**-power for power in powers], rel=1e-12)

    def test_takes_off_slope_times_distance_on_both_sides(self):
        extent = Extent(1, 2, 3, 4, torch.device("cpu"), start=1)
        bias = ALiBi(2).bias(randn(1, 2, 3, 4), extent)(Cells(extent))
        distances = [[1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
        for head, slope in enumerate([2**-4, 2**-8]):
            assert bias[0, head].tolist() == [[-slope * distance for distance in row] for row in distances]

    def test_prefers_near_keys_when_all_fit_alike(self):
        x = torch.zeros(1, 8, 10, 4)
        weights = attend(x, x, x, position=ALiBi(8), mask=Causal(), need_weights=True).weights
        last = weights[0, :, -1]
        assert (last.diff(dim=-1) > 0).all()
        assert (last[:-1, -1] > last[1:, -1]).all()  # the first heads look nearest

    def test_needs_the_heads_it_was_made_for(self):
        x = torch.zeros(1, 4, 3, 4)
        with pytest.raises(ShapeError, match="made for 8 heads, but there are 4"):
            attend(x, x, x, position=ALiBi(8))
        with pytest.raises(InputError, match="at least one"):
            ALiBi(0)


class TestEncodings:
    """Positions that are added to embeddings."""

    @pytest.mark.parametrize("dim", [16, 7])
    def test_sinusoidal_positions_of_any_places_are_rows_of_the_table(self, dim):
        encoding = Sinusoidal(dim)
        places = torch.tensor([[3, 0, 3], [41, 7, 100]])
        assert encoding.at(places).equal(encoding(101)[places])

    @settings(max_examples=20, deadline=None)
    @given(place=st.integers(0, 10_000), offset=st.integers(0, 500))
    def test_an_offset_is_a_rotation_that_does_not_depend_on_the_place(self, place, offset):
        encoding = Sinusoidal(12).double()
        angle = offset * 10000.0 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
        rotation = torch.block_diag(
            *(torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]], dtype=torch.float64) for a in angle)
        )
        here, there = encoding.at(torch.tensor([[place, place + offset]]))[0]
        torch.testing.assert_close(rotation @ here, there)

    def test_learned_positions_of_any_places_are_rows_of_the_table(self):
        encoding = Learned(5, 3)
        places = torch.tensor([[4, 0, 4]])
        assert encoding.at(places).equal(encoding.weight[places])
        encoding.at(places).sum().backward()
        assert encoding.weight.grad[:, 0].tolist() == [1, 0, 0, 0, 2]

    def test_learned_positions_end_where_learning_did(self):
        encoding = Learned(5, 3)
        assert not encoding.extrapolates
        assert Sinusoidal(3).extrapolates
        assert encoding(2, offset=3).equal(encoding.weight[3:])
        with pytest.raises(InputError, match="place 5 has no position: 5 were learned"):
            encoding(3, offset=3)
        for place in (5, -1):
            with pytest.raises(InputError, match=f"place {place} has no position"):
                encoding.at(torch.tensor([[0, place]]))

"""Position terms: each one on its own, and all of them inside the operator."""

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
from qkv.attention.mask import Causal, Padding
from qkv.attention.operator import Attend, attend, build_request
from qkv.attention.position import ALiBi, Position, Rotary
from qkv.attention.quadratic import Quadratic
from qkv.attention.relative import Relative, TreeRelative
from qkv.attention.score_shape import CellIndex, ScoreShape
from qkv.attention.spec import AttentionRequest, Backend
from qkv.attention.tree import Trees
from qkv.errors import InputError, ShapeError

BATCH, HEADS, LENGTH, DIM = 2, 4, 6, 8
HEADS_OF_WORDS = torch.tensor([[3, 3, 4, 0, 6, 4], [0, 1, 2, 2, 1, 5]])


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def qkv_heads(kv_heads: int = HEADS) -> list[Tensor]:
    """Queries, keys and values."""
    return [randn(BATCH, heads, LENGTH, DIM) for heads in (HEADS, kv_heads, kv_heads)]


def supporting_backends(request: AttentionRequest) -> list[Backend]:
    """Backends that support a request, except those that compile (see `UNCHECKED`)."""
    return [REFERENCE] if request.position.adds_to_output else [BACKENDS["sdpa"], REFERENCE]


class PositionCase:
    """A position term for a whole sequence, or for some of its queries and keys."""

    def __init__(self, term: Position) -> None:
        self.term = term
        self.distances = Trees.from_heads(HEADS_OF_WORDS).relative() if isinstance(term, TreeRelative) else None

    def at(self, positions: Tensor | slice = slice(None), keys: int = LENGTH) -> Position:
        """The term for queries at some positions (shared, or one per row) and the first keys."""
        if self.distances is None:
            return self.term
        if isinstance(positions, Tensor):
            return self.term.with_distances(self.distances[torch.arange(BATCH), positions][:, None, :keys])
        return self.term.with_distances(self.distances[:, positions, :keys])


POSITIONS = {
    "rotary": lambda: Rotary(DIM),
    "ALiBi": lambda: ALiBi(HEADS),
    "quadratic": lambda: Quadratic(HEADS, columns=2).double(),
    "relative": lambda: Relative(DIM, 2).double(),
    "relative, keys only": lambda: Relative(DIM, 2, values=False).double(),
    "tree": lambda: TreeRelative(DIM, 2).double(),
    "tree, keys only": lambda: TreeRelative(DIM, 2, values=False).double(),
}


@pytest.fixture(params=POSITIONS)
def case(request: pytest.FixtureRequest) -> PositionCase:
    torch.manual_seed(0)
    return PositionCase(POSITIONS[request.param]())


class TestEveryPosition:
    """Properties of all position terms."""

    def test_changes_the_output(self, case):
        inputs = qkv_heads()
        assert not torch.allclose(attend(*inputs, position=case.at()).output, attend(*inputs).output, atol=1e-3)

    @pytest.mark.parametrize("heads", [None, [3, 1]])
    @pytest.mark.parametrize("queries", [None, [4, 0, 5], [2]])
    @pytest.mark.parametrize("start", [None, 1, torch.tensor([0, 2])])
    def test_subsets_of_heads_and_queries_match_the_full_result(self, case, heads, queries, start):
        request = build_request(*qkv_heads(kv_heads=2), position=case.at(), mask=Causal(), start=start)
        part = request.subset(*(None if chosen is None else tuple(chosen) for chosen in (heads, queries)))
        weights = REFERENCE.weights(request)
        rows = slice(None) if queries is None else queries
        select = (lambda x: x[:, :, rows]) if heads is None else (lambda x: x[:, heads][:, :, rows])
        torch.testing.assert_close(REFERENCE.weights(part), select(weights))
        torch.testing.assert_close(REFERENCE.run(part).output, select(REFERENCE.run(request).output))

    def test_incremental_decoding_with_growing_keys_matches_one_pass(self, case):
        query, key, value = qkv_heads()
        full = attend(query, key, value, position=case.at(), mask=Causal()).output
        for position in range(LENGTH):
            now = slice(position, position + 1)
            past = slice(position + 1)
            step = attend(
                query[:, :, now], key[:, :, past], value[:, :, past], position=case.at(now, position + 1), mask=Causal()
            )
            torch.testing.assert_close(step.output, full[:, :, now])

    def test_incremental_decoding_with_transformed_keys_matches_one_pass(self, case):
        query, key, value = qkv_heads()
        module = Attend(position=case.at())
        full = module(query, key, value, mask=Causal()).output
        parts = [module.keys(key[:, :, position : position + 1], start=position) for position in range(LENGTH)]
        keys = type(parts[0])(torch.cat([part.tensor for part in parts], dim=2))
        for position in range(LENGTH):
            now = slice(position, position + 1)
            for start in (position, torch.tensor(position), torch.tensor([position, position])):
                step = module(query[:, :, now], keys, value, mask=Causal(), position=case.at(now), start=start)
                torch.testing.assert_close(step.output, full[:, :, now])

    def test_each_row_can_have_its_own_start(self, case):
        query, key, value = qkv_heads()
        full = attend(query, key, value, position=case.at(), mask=Causal()).output
        positions = torch.tensor([4, 1])
        rows = torch.arange(BATCH)
        result = attend(
            query[rows, :, positions][:, :, None],
            key,
            value,
            position=case.at(positions),
            mask=Causal(),
            start=positions,
        )
        torch.testing.assert_close(result.output[:, :, 0], full[rows, :, positions])

    def test_fully_masked_rows_have_zero_output_and_gradient(self, case):
        inputs = [x.requires_grad_() for x in qkv_heads()]
        position = case.at()
        learned = [*inputs, *(case.term.parameters() if isinstance(case.term, nn.Module) else [])]
        coefficients = randn(BATCH, HEADS, LENGTH, DIM)
        alone = attend(*(x[1:] for x in inputs), position=only_row(position, 1), mask=Padding(torch.tensor([5]))).output
        expected = torch.autograd.grad((alone * coefficients[1:]).sum(), learned)
        request = build_request(*inputs, position=position, mask=Padding(torch.tensor([0, 5])))
        for backend in supporting_backends(request):
            output = backend.run(request).output
            assert (output[0] == 0).all()
            actual = torch.autograd.grad((output * coefficients).sum(), learned)
            for a, b in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, b)
            assert all((a[0] == 0).all() for a in actual[:3])

    def test_gradcheck(self, case):
        inputs = [x[:, :, :3].clone().requires_grad_() for x in qkv_heads()]
        weights = list(case.term.parameters()) if isinstance(case.term, nn.Module) else []
        position = case.at(slice(3), 3)
        assert torch.autograd.gradcheck(
            lambda q, k, v, *_: attend(q, k, v, position=position, mask=Padding(torch.tensor([3, 2]))).output,
            (*inputs, *weights),
            fast_mode=True,
        )

    @torch.no_grad()
    def test_low_precision_is_close_to_float64(self, case):
        inputs = qkv_heads()
        truth = attend(*inputs, position=case.at(), mask=Causal()).output
        if isinstance(case.term, nn.Module):
            case.term.bfloat16()
        request = build_request(*(x.bfloat16() for x in inputs), position=case.at(), mask=Causal())
        for backend in supporting_backends(request):
            actual = backend.run(request).output
            assert actual.dtype == torch.bfloat16
            torch.testing.assert_close(actual.double(), truth, rtol=0, atol=8 * torch.finfo(torch.bfloat16).eps)

    def test_is_defined_far_beyond_the_trained_length(self, case):
        if case.distances is not None:
            case.distances = case.distances * 1000
        result = attend(*qkv_heads(), position=case.at(), start=100_000)
        assert result.output.isfinite().all()


# The run-time shape checks of the tests cannot be compiled, so this runs in a separate process.
UNCHECKED = """
import torch
from qkv.attention.backends import BACKENDS
from qkv.attention.mask import Causal
from qkv.attention.operator import attend, build_request
from qkv.attention.position import ALiBi, Rotary
from qkv.attention.quadratic import Quadratic
from qkv.attention.relative import Relative, TreeRelative

torch.manual_seed(0)
inputs = [torch.randn(2, 4, 6, 8) for _ in range(3)]
distances = torch.randint(-3, 4, (2, 6, 6))
tree = TreeRelative(8, 2, values=False)
start = torch.tensor([0, 2])
for term in (Rotary(8), ALiBi(4), Quadratic(4, 2), Relative(8, 2), Relative(8, 2, values=False), tree):

    def run(query, key, value, backend="auto"):
        position = term.with_distances(distances) if term is tree else term
        return attend(query, key, value, position=position, mask=Causal(), start=start, backend=backend).output

    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(*inputs), run(*inputs))
    with torch.no_grad():
        request = build_request(*inputs, position=term.with_distances(distances) if term is tree else term)
        able = [name for name, backend in BACKENDS.items() if backend.supports(request) is None]
        for backend in able:
            torch.testing.assert_close(run(*inputs, backend=backend), run(*inputs, backend="reference"))
    print(type(term).__name__, *sorted(able))
"""


def test_every_position_compiles_as_one_graph_and_matches_on_all_backends():
    process = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, check=False)
    every = "flex reference sdpa"
    assert process.stdout.splitlines() == [
        f"Rotary {every}", f"ALiBi {every}", f"Quadratic {every}", "Relative reference", f"Relative {every}",
        f"TreeRelative {every}",
    ], process.stderr[-2000:]  # fmt: skip


def only_row(position: Position, row: int) -> Position:
    """The position for one row of the batch."""
    if isinstance(position, Rotary | ALiBi | Quadratic | Relative):
        return position
    return position.term.with_distances(position.distances[row : row + 1, 0])


class TestRotary:
    """Su et al. 2021."""

    @settings(max_examples=20, deadline=None)
    @given(offset=st.integers(0, 5000), dim=st.sampled_from([2, 6, 64]), seed=st.integers(0, 2**16))
    def test_scores_depend_only_on_distances(self, offset, dim, seed):
        torch.manual_seed(seed)
        query, key = randn(1, 2, 4, dim), randn(1, 2, 7, dim)
        rotary = Rotary(dim)

        def scores(offset: int) -> Tensor:
            rotated = [rotary.apply_to_qk(x, offset + torch.arange(x.shape[2])[None]) for x in (query, key)]
            return rotated[0] @ rotated[1].transpose(-1, -2)

        torch.testing.assert_close(scores(offset), scores(0))

    def test_equals_a_rotation_matrix_for_each_pair_of_features(self):
        torch.manual_seed(0)
        dim, base = 6, 100.0
        x = randn(1, 1, 5, dim)
        actual = Rotary(dim, base).apply_to_qk(x, torch.tensor([[0, 1, 2, 50, 9]]))
        for index, position in enumerate([0, 1, 2, 50, 9]):
            matrix = torch.zeros(dim, dim, dtype=torch.float64)
            for pair in range(dim // 2):
                angle = torch.tensor(position * base ** (-2 * pair / dim), dtype=torch.float64)
                a, b = pair, pair + dim // 2
                matrix[a, a] = matrix[b, b] = angle.cos()
                matrix[a, b], matrix[b, a] = -angle.sin(), angle.sin()
            torch.testing.assert_close(actual[0, 0, index], matrix @ x[0, 0, index])

    def test_preserves_norms(self):
        x = randn(2, 3, 5, 8)
        rotated = Rotary(8).apply_to_qk(x, torch.arange(5)[None] + torch.tensor([[0], [77]]))
        torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))

    def test_uses_the_angles_of_the_sinusoidal_encoding(self):
        ones_and_zeros = torch.cat((torch.ones(1, 1, 30, 4), torch.zeros(1, 1, 30, 4)), dim=-1).double()
        cos, sin = Rotary(8).apply_to_qk(ones_and_zeros, torch.arange(30)[None])[0, 0].chunk(2, dim=-1)
        table = Sinusoidal(8).double()(30)
        torch.testing.assert_close(table, torch.stack((sin, cos), dim=-1).flatten(1))

    def test_large_positions_are_exact_in_low_precision(self):
        torch.manual_seed(0)
        x = randn(1, 1, 4, 8)
        positions = torch.tensor([[1000, 1001, 1002, 1003]])  # bfloat16 cannot represent these
        truth = Rotary(8).apply_to_qk(x, positions)
        torch.testing.assert_close(Rotary(8).apply_to_qk(x.bfloat16(), positions).double(), truth, rtol=0, atol=0.03)

    @pytest.mark.parametrize("dim", [0, 7, -2])
    def test_requires_an_even_dim(self, dim):
        with pytest.raises(InputError, match="even"):
            Rotary(dim)

    def test_rejects_wrong_head_size_and_base(self):
        with pytest.raises(ShapeError, match="8 features"):
            Rotary(8).apply_to_qk(randn(1, 1, 2, 6), torch.arange(2)[None])
        with pytest.raises(InputError, match="positive"):
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

    def test_bias_is_minus_slope_times_distance_on_both_sides(self):
        shape = ScoreShape(1, 2, 3, 4, torch.device("cpu"), start=1)
        bias = ALiBi(2).bias(randn(1, 2, 3, 4), shape)(CellIndex(shape))
        distances = [[1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
        for head, slope in enumerate([2**-4, 2**-8]):
            assert bias[0, head].tolist() == [[-slope * distance for distance in row] for row in distances]

    def test_prefers_nearby_keys_when_scores_are_equal(self):
        x = torch.zeros(1, 8, 10, 4)
        weights = attend(x, x, x, position=ALiBi(8), mask=Causal(), need_weights=True).weights
        last = weights[0, :, -1]
        assert (last.diff(dim=-1) > 0).all()
        assert (last[:-1, -1] > last[1:, -1]).all()  # the first heads are the most local

    def test_rejects_a_different_number_of_heads(self):
        x = torch.zeros(1, 4, 3, 4)
        with pytest.raises(ShapeError, match="8 heads"):
            attend(x, x, x, position=ALiBi(8))
        with pytest.raises(InputError, match="at least one"):
            ALiBi(0)


class TestEncodings:
    """Encodings that are added to embeddings."""

    @pytest.mark.parametrize("dim", [16, 7])
    def test_sinusoidal_at_arbitrary_positions_matches_the_table(self, dim):
        encoding = Sinusoidal(dim)
        positions = torch.tensor([[3, 0, 3], [41, 7, 100]])
        assert encoding.at(positions).equal(encoding(101)[positions])

    @settings(max_examples=20, deadline=None)
    @given(position=st.integers(0, 10_000), offset=st.integers(0, 500))
    def test_an_offset_is_a_rotation_independent_of_the_position(self, position, offset):
        encoding = Sinusoidal(12).double()
        angle = offset * 10000.0 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
        rotation = torch.block_diag(
            *(torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]], dtype=torch.float64) for a in angle)
        )
        here, there = encoding.at(torch.tensor([[position, position + offset]]))[0]
        torch.testing.assert_close(rotation @ here, there)

    def test_learned_at_arbitrary_positions_matches_the_table(self):
        encoding = Learned(5, 3)
        positions = torch.tensor([[4, 0, 4]])
        assert encoding.at(positions).equal(encoding.weight[positions])
        encoding.at(positions).sum().backward()
        assert encoding.weight.grad[:, 0].tolist() == [1, 0, 0, 0, 2]

    def test_learned_positions_beyond_max_length_raise(self):
        encoding = Learned(5, 3)
        assert encoding(2, offset=3).equal(encoding.weight[3:])
        with pytest.raises(InputError, match="position 5"):
            encoding(3, offset=3)
        for position in (5, -1):
            with pytest.raises(InputError, match=f"position {position}"):
                encoding.at(torch.tensor([[0, position]]))

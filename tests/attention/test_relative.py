"""Relative positions along the sequence and in dependency trees, against hand-written formulas of the papers."""

import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qkv
from qkv.attention.encoding import Learned, Sinusoidal
from qkv.attention.mask import Causal, Padding
from qkv.attention.operator import Attend, attend
from qkv.attention.relative import Relative, TreeRelative
from qkv.attention.tree import Trees
from qkv.errors import InputError, ShapeError, Unsupported


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, distances: Tensor, term: Relative | TreeRelative, lengths: Tensor
) -> Tensor:
    """Shaw et al. 2018, equations 3 and 4, with a vector per pair of words, one query at a time."""
    bound = term.max_distance
    batch, heads, queries, dim = query.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                visible = range(int(lengths[b]))
                row = [max(-bound, min(bound, int(distances[b, i, j]))) + bound for j in visible]
                keys = [key[b, h, j] + term.key[r] for j, r in zip(visible, row, strict=True)]
                values = [
                    value[b, h, j] + term.value[r] if term.adds_to_output else value[b, h, j] for j, r in enumerate(row)
                ]
                weights = torch.stack([query[b, h, i] @ k / math.sqrt(dim) for k in keys]).softmax(dim=0)
                rows.append(weights @ torch.stack(values))
    return torch.stack(rows).view(batch, heads, queries, -1)


def assert_same_with_gradients(actual: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected)
    coefficients = torch.linspace(-1, 1, actual.numel(), dtype=actual.dtype).view_as(actual)
    pairs = zip(*(torch.autograd.grad((x * coefficients).sum(), inputs) for x in (actual, expected)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)


SIZES = {
    "batch": st.integers(1, 2),
    "heads": st.integers(1, 2),
    "queries": st.integers(1, 4),
    "keys": st.integers(1, 6),
    "max_distance": st.integers(0, 4),
    "values": st.booleans(),
    "seed": st.integers(0, 2**16),
}


class TestRelative:
    """Shaw, Uszkoreit and Vaswani 2018."""

    @settings(max_examples=25, deadline=None)
    @given(**SIZES, start=st.integers(0, 9))
    def test_output_and_gradients_match_the_paper(self, batch, heads, queries, keys, max_distance, values, seed, start):
        torch.manual_seed(seed)
        inputs = [randn(batch, heads, queries, 6), randn(batch, heads, keys, 6), randn(batch, heads, keys, 3)]
        term = Relative(6, max_distance, value_dim=3, values=values).double()
        lengths = torch.randint(1, keys + 1, (batch,))
        actual = attend(*inputs, position=term, mask=Padding(lengths), start=start).output
        distances = (torch.arange(keys) - (start + torch.arange(queries)[:, None])).expand(batch, queries, keys)
        assert_same_with_gradients(
            actual, by_hand(*inputs, distances, term, lengths), [*inputs, *(list(term.parameters()))]
        )

    def test_keys_beyond_max_distance_are_not_distinguished(self):
        torch.manual_seed(0)
        query, key, value = (x.detach() for x in (randn(1, 1, 1, 8), randn(1, 1, 9, 8), randn(1, 1, 9, 8)))
        term = Relative(8, 2).double()
        order = torch.tensor([3, 5, 1, 0, 4, 2, 6, 7, 8])  # permutes only keys more than 2 positions before the query
        a = attend(query, key, value, position=term).output
        b = attend(query, key[:, :, order], value[:, :, order], position=term).output
        torch.testing.assert_close(a, b)
        nearer = torch.tensor([0, 1, 2, 3, 4, 5, 7, 6, 8])
        assert not torch.allclose(a, attend(query, key[:, :, nearer], value[:, :, nearer], position=term).output)

    def test_without_values_it_runs_on_fused_kernels(self):
        x = torch.randn(1, 1, 4, 8)
        actual = attend(x, x, x, position=(term := Relative(8, 2, values=False)), backend="sdpa").output
        torch.testing.assert_close(actual, attend(x, x, x, position=term, backend="reference").output)
        assert [name for name, _ in term.named_parameters()] == ["key"]
        with pytest.raises(Unsupported, match="Relative"):
            attend(x, x, x, position=Relative(8, 2), backend="sdpa")

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_weights_of_many_distant_keys_add_up_in_low_precision(self):
        # A running sum of 1/4096 in bfloat16 stagnates at 1/16, where a summand is below half an ulp.
        # On the CPU, PyTorch accumulates in float32 anyway.
        inputs = [torch.zeros(1, 1, n, 4, dtype=torch.bfloat16, device="cuda") for n in (1, 4096, 4096)]
        term = Relative(4, 1)
        nn.init.ones_(term.value)
        result = attend(*inputs, position=term.to("cuda", torch.bfloat16), start=5000).output
        torch.testing.assert_close(result, torch.ones_like(result), rtol=0, atol=0.01)

    def test_invalid_sizes_raise(self):
        x = torch.randn(1, 1, 4, 8)
        with pytest.raises(ShapeError, match="6 features"):
            attend(x, x, x, position=Relative(6, 2))
        with pytest.raises(InputError, match="negative"):
            Relative(8, -1)


@pytest.mark.parametrize("kind", [Relative, TreeRelative])
@pytest.mark.parametrize("values", [True, False])
def test_zero_vectors_give_plain_attention(kind, values):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 5, 8)
    term = kind(8, 2, values=values)
    for table in term.parameters():
        nn.init.zeros_(table)
    position = term if kind is Relative else term.with_distances(torch.randint(-4, 5, (2, 5, 5)))
    for backend in ("reference",) if values else ("reference", "sdpa"):
        actual = attend(x, x, x, position=position, mask=Causal(), backend=backend).output
        torch.testing.assert_close(actual, attend(x, x, x, mask=Causal(), backend=backend).output)


class TestTreeRelative:
    """Wang, Tu, Wang and Shi 2019."""

    @settings(max_examples=25, deadline=None)
    @given(**SIZES)
    def test_output_and_gradients_match_the_paper(self, batch, heads, queries, keys, max_distance, values, seed):
        torch.manual_seed(seed)
        inputs = [randn(batch, heads, queries, 6), randn(batch, heads, keys, 6), randn(batch, heads, keys, 3)]
        term = TreeRelative(6, max_distance, value_dim=3, values=values).double()
        distances = torch.randint(-6, 7, (batch, queries, keys))
        lengths = torch.randint(1, keys + 1, (batch,))
        actual = attend(*inputs, position=term.with_distances(distances), mask=Padding(lengths)).output
        assert_same_with_gradients(
            actual, by_hand(*inputs, distances, term, lengths), [*inputs, *(list(term.parameters()))]
        )

    def test_sequence_distances_match_relative(self):
        torch.manual_seed(0)
        x = torch.randn(2, 2, 5, 8)
        relative, tree = Relative(8, 2), TreeRelative(8, 2)
        tree.load_state_dict(relative.state_dict())
        distances = (torch.arange(5) - torch.arange(5)[:, None])[None]
        for kind in (torch.int64, torch.int32):
            actual = attend(x, x, x, position=tree.with_distances(distances.to(kind))).output
            torch.testing.assert_close(actual, attend(x, x, x, position=relative).output)

    def test_can_be_watched(self):
        torch.manual_seed(0)
        x = torch.randn(2, 2, 5, 8)
        term = TreeRelative(8, 2)
        module = Attend(position=term)
        assert len(list(module.parameters())) == 2
        position = term.with_distances(torch.randint(-4, 5, (2, 5, 5)))
        with qkv.watch(nn.ModuleDict({"encoder": module}), heads=[1], queries=[3, 0]) as recorded:
            module(x, x, x, position=position)
        expected = attend(x, x, x, position=position, need_weights=True).weights
        torch.testing.assert_close(recorded["encoder"].weights, expected[:, [1]][:, :, [3, 0]])

    def test_without_distances_it_raises(self):
        x = torch.randn(1, 1, 4, 8)
        with pytest.raises(InputError, match="with_distances"):
            attend(x, x, x, position=TreeRelative(8, 2))

    @pytest.mark.usefixtures("unchecked")
    def test_distances_of_the_wrong_shape_or_dtype_raise(self):
        x = torch.randn(2, 1, 4, 8)
        term = TreeRelative(8, 2)
        for shape in ((2, 4, 3), (2, 3, 4), (3, 4, 4)):
            with pytest.raises(ShapeError, match="the call has"):
                attend(x, x, x, position=term.with_distances(torch.zeros(shape, dtype=torch.long)))
        for distances in (torch.zeros(2, 4, 4), torch.zeros(4, 4, dtype=torch.long)):
            with pytest.raises(ShapeError, match="integer tensor"):
                term.with_distances(distances)


#   saw
#   ├── man ── The, old
#   └── dog ── a
SENTENCE = ["The", "old", "man", "saw", "a", "dog"]
HEADS = [3, 3, 4, 0, 6, 4]


class TestTrees:
    """Positions in dependency trees."""

    def test_example_sentence(self):
        trees = Trees.from_heads(torch.tensor([HEADS]))
        assert dict(zip(SENTENCE, trees.depth[0].tolist(), strict=True)) == {
            "The": 2, "old": 2, "man": 1, "saw": 0, "a": 2, "dog": 1,
        }  # fmt: skip
        assert trees.relative()[0].tolist() == [
            [0, -4, 1, 2, -4, -3],
            [4, 0, 1, 2, -4, -3],
            [-1, -1, 0, 1, -3, -2],
            [-2, -2, -1, 0, -2, -1],
            [4, 4, 3, 2, 0, 1],
            [3, 3, 2, 1, -1, 0],
        ]

    @settings(max_examples=40, deadline=None)
    @given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=3), seed=st.integers(0, 2**16))
    def test_depths_distances_and_signs_match_networkx(self, sizes, seed):
        words = max(sizes) + seed % 3  # sometimes padding for all sentences
        heads = torch.full((len(sizes), words), -7)
        graphs = [random_tree(size, seed + index) for index, size in enumerate(sizes)]
        for row, graph in zip(heads, graphs, strict=True):
            for head, word in graph.edges:
                row[word - 1] = head
        trees = Trees.from_heads(heads, torch.tensor(sizes))
        depth, relative = trees.depth, trees.relative()
        for b, (size, graph) in enumerate(zip(sizes, graphs, strict=True)):
            assert (relative[b, size:] == 0).all()
            assert (relative[b, :, size:] == 0).all()
            assert (depth[b, size:] == 0).all()
            from_top = nx.shortest_path_length(graph, 0)  # node 0 is above the root
            distances_between = dict(nx.all_pairs_shortest_path_length(graph.to_undirected()))
            for i in range(1, size + 1):
                assert depth[b, i - 1] == from_top[i] - 1
                for j in range(1, size + 1):
                    if i in nx.ancestors(graph, j):
                        sign = -1
                    elif j in nx.ancestors(graph, i):
                        sign = 1
                    else:
                        sign = (i > j) - (i < j)
                        assert relative[b, i - 1, j - 1] == sign * (from_top[i] + from_top[j] - 2)
                    if i in nx.ancestors(graph, j) | {j}:
                        assert relative[b, i - 1, j - 1] == sign * distances_between[i][j]

    def test_depths_of_a_chain(self):
        for length in (1, 2, 3, 64, 65):
            trees = Trees.from_heads(torch.arange(length)[None])
            assert trees.depth[0].tolist() == list(range(length))
            assert trees.relative()[0].equal(torch.arange(length)[:, None] - torch.arange(length))

    @pytest.mark.parametrize(
        ("heads", "lengths", "message"),
        [
            ([[0, 1, 2], [0, 3, 2]], None, "word 2 of sentence 2"),
            ([[0, 3, 4, 3, 2]], None, "word 3 of sentence 1"),  # word 2 is below the cycle, not in it
            ([[0, 2]], None, "word 2 of sentence 1"),
            ([[0, 4, 1]], None, "word 2 of sentence 1"),
            ([[0, -1, 1]], None, "word 2 of sentence 1"),
            ([[0, 1, 1], [0, 3, 0]], [3, 2], "word 2 of sentence 2"),
            ([[0, 1, 0]], None, "word 3 of sentence 1"),
            ([[0, 1], [2, 1]], None, "sentence 2"),
            ([[0, 1]], [3], "lengths"),
        ],
    )
    def test_invalid_trees_raise(self, heads, lengths, message):
        with pytest.raises(InputError, match=message):
            Trees.from_heads(torch.tensor(heads), None if lengths is None else torch.tensor(lengths))

    @pytest.mark.usefixtures("unchecked")
    def test_invalid_tensors_raise(self):
        with pytest.raises(ShapeError, match="integer tensor"):
            Trees.from_heads(torch.tensor([0, 1]))
        with pytest.raises(ShapeError, match="lengths"):
            Trees.from_heads(torch.tensor([[0, 1]]), torch.tensor([2, 2]))

    def test_depths_are_valid_positions_for_encodings(self):
        depth = Trees.from_heads(torch.tensor([HEADS, [0, 1, 1, 0, 0, 0]]), torch.tensor([6, 3])).depth
        for encoding in (Sinusoidal(8), Learned(3, 8)):
            vectors = encoding.at(depth)
            assert vectors[0, 3].equal(encoding(1)[0])  # the root
            assert vectors[0, 0].equal(vectors[0, 4])  # two words of one depth


def random_tree(words: int, seed: int) -> nx.DiGraph:
    """A tree over words 1 ... n below a node 0, edges from head to word."""
    if words == 0:
        return nx.empty_graph(1, create_using=nx.DiGraph)
    free = nx.random_labeled_tree(words, seed=seed)
    root = seed % words
    directed = nx.bfs_tree(free, root)
    return nx.DiGraph([(0, root + 1), *((head + 1, word + 1) for head, word in directed.edges)])

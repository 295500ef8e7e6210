"""Vectors for distances, along the sentence and along a dependency tree, against their papers written out by hand."""

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
    """Shaw et al. 2018, equations 3 and 4, with a vector for each pair of words and one query at a time."""
    bound = term.max_distance
    batch, heads, queries, dim = query.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                seen = range(int(lengths[b]))
                row = [max(-bound, min(bound, int(distances[b, i, j]))) + bound for j in seen]
                keys = [key[b, h, j] + term.key[r] for j, r in zip(seen, row, strict=True)]
                values = [value[b, h, j] + term.value[r] if term.reads else value[b, h, j] for j, r in enumerate(row)]
                weights = torch.stack([query[b, h, i] @ k / math.sqrt(dim) for k in keys]).softmax(dim=0)
                rows.append(weights @ torch.stack(values))
    return torch.stack(rows).view(batch, heads, queries, -1)


def assert_same_with_gradients(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected)
    slope = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    pairs = zip(*(torch.autograd.grad((x * slope).sum(), inputs) for x in (found, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


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
    def test_output_and_gradients_are_those_of_the_paper(
        self, batch, heads, queries, keys, max_distance, values, seed, start
    ):
        torch.manual_seed(seed)
        inputs = [randn(batch, heads, queries, 6), randn(batch, heads, keys, 6), randn(batch, heads, keys, 3)]
        term = Relative(6, max_distance, value_dim=3, values=values).double()
        lengths = torch.randint(1, keys + 1, (batch,))
        found = attend(*inputs, position=term, mask=Padding(lengths), start=start).output
        distances = (torch.arange(keys) - (start + torch.arange(queries)[:, None])).expand(batch, queries, keys)
        assert_same_with_gradients(
            found, by_hand(*inputs, distances, term, lengths), [*inputs, *(list(term.parameters()))]
        )

    def test_keys_further_than_the_furthest_are_not_told_apart(self):
        torch.manual_seed(0)
        query, key, value = (x.detach() for x in (randn(1, 1, 1, 8), randn(1, 1, 9, 8), randn(1, 1, 9, 8)))
        term = Relative(8, 2).double()
        order = torch.tensor([3, 5, 1, 0, 4, 2, 6, 7, 8])  # all that changes places is more than 2 before the query
        one = attend(query, key, value, position=term).output
        other = attend(query, key[:, :, order], value[:, :, order], position=term).output
        torch.testing.assert_close(one, other)
        nearer = torch.tensor([0, 1, 2, 3, 4, 5, 7, 6, 8])
        assert not torch.allclose(one, attend(query, key[:, :, nearer], value[:, :, nearer], position=term).output)

    def test_without_values_the_fused_kernels_serve_it(self):
        x = torch.randn(1, 1, 4, 8)
        found = attend(x, x, x, position=(term := Relative(8, 2, values=False)), backend="sdpa").output
        torch.testing.assert_close(found, attend(x, x, x, position=term, backend="reference").output)
        assert [name for name, _ in term.named_parameters()] == ["key"]
        with pytest.raises(Unsupported, match="the position Relative adds to what is read"):
            attend(x, x, x, position=Relative(8, 2), backend="sdpa")

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_the_weights_of_many_far_keys_add_up_in_low_precision_too(self):
        # A running sum of 1/4096 in bfloat16 stands still at 1/16: the next summand is under half of its last digit.
        # On the CPU PyTorch keeps such sums in float32 by itself.
        inputs = [torch.zeros(1, 1, n, 4, dtype=torch.bfloat16, device="cuda") for n in (1, 4096, 4096)]
        term = Relative(4, 1)
        nn.init.ones_(term.value)
        read = attend(*inputs, position=term.to("cuda", torch.bfloat16), start=5000).output
        torch.testing.assert_close(read, torch.ones_like(read), rtol=0, atol=0.01)

    def test_what_does_not_fit_is_refused_in_words(self):
        x = torch.randn(1, 1, 4, 8)
        with pytest.raises(ShapeError, match="made for queries of 6 features, but they have 8"):
            attend(x, x, x, position=Relative(6, 2))
        with pytest.raises(InputError, match="must not be negative"):
            Relative(8, -1)


@pytest.mark.parametrize("made", [Relative, TreeRelative])
@pytest.mark.parametrize("values", [True, False])
def test_vectors_of_zero_leave_plain_attention(made, values):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 5, 8)
    term = made(8, 2, values=values)
    for table in term.parameters():
        nn.init.zeros_(table)
    position = term if made is Relative else term.between(torch.randint(-4, 5, (2, 5, 5)))
    for backend in ("reference",) if values else ("reference", "sdpa"):
        found = attend(x, x, x, position=position, mask=Causal(), backend=backend).output
        torch.testing.assert_close(found, attend(x, x, x, mask=Causal(), backend=backend).output)


class TestTreeRelative:
    """Wang, Tu, Wang and Shi 2019."""

    @settings(max_examples=25, deadline=None)
    @given(**SIZES)
    def test_output_and_gradients_are_those_of_the_paper(self, batch, heads, queries, keys, max_distance, values, seed):
        torch.manual_seed(seed)
        inputs = [randn(batch, heads, queries, 6), randn(batch, heads, keys, 6), randn(batch, heads, keys, 3)]
        term = TreeRelative(6, max_distance, value_dim=3, values=values).double()
        distances = torch.randint(-6, 7, (batch, queries, keys))
        lengths = torch.randint(1, keys + 1, (batch,))
        found = attend(*inputs, position=term.between(distances), mask=Padding(lengths)).output
        assert_same_with_gradients(
            found, by_hand(*inputs, distances, term, lengths), [*inputs, *(list(term.parameters()))]
        )

    def test_distances_along_the_sentence_give_what_relative_gives(self):
        torch.manual_seed(0)
        x = torch.randn(2, 2, 5, 8)
        relative, tree = Relative(8, 2), TreeRelative(8, 2)
        tree.load_state_dict(relative.state_dict())
        distances = (torch.arange(5) - torch.arange(5)[:, None])[None]
        for kind in (torch.int64, torch.int32):
            found = attend(x, x, x, position=tree.between(distances.to(kind))).output
            torch.testing.assert_close(found, attend(x, x, x, position=relative).output)

    def test_is_seen_by_watch(self):
        torch.manual_seed(0)
        x = torch.randn(2, 2, 5, 8)
        term = TreeRelative(8, 2)
        module = Attend(position=term)
        assert len(list(module.parameters())) == 2
        position = term.between(torch.randint(-4, 5, (2, 5, 5)))
        with qkv.watch(nn.ModuleDict({"encoder": module}), heads=[1], queries=[3, 0]) as seen:
            module(x, x, x, position=position)
        expected = attend(x, x, x, position=position, need_weights=True).weights
        torch.testing.assert_close(seen["encoder"].weights, expected[:, [1]][:, :, [3, 0]])

    def test_without_distances_it_says_how_to_give_them(self):
        x = torch.randn(1, 1, 4, 8)
        with pytest.raises(InputError, match=r"position=term\.between\(distances\)"):
            attend(x, x, x, position=TreeRelative(8, 2))

    @pytest.mark.usefixtures("unchecked")
    def test_distances_that_do_not_fit_are_refused_in_words(self):
        x = torch.randn(2, 1, 4, 8)
        term = TreeRelative(8, 2)
        for shape in ((2, 4, 3), (2, 3, 4), (3, 4, 4)):
            with pytest.raises(ShapeError, match="the call has 4 queries and 4 keys in 2"):
                attend(x, x, x, position=term.between(torch.zeros(shape, dtype=torch.long)))
        for distances in (torch.zeros(2, 4, 4), torch.zeros(4, 4, dtype=torch.long)):
            with pytest.raises(ShapeError, match=r"whole numbers \[batch, query, key\]"):
                term.between(distances)


#   saw
#   ├── man ── The, old
#   └── dog ── a
SENTENCE = ["The", "old", "man", "saw", "a", "dog"]
HEADS = [3, 3, 4, 0, 6, 4]


class TestTrees:
    """Places in dependency trees."""

    def test_a_sentence_by_hand(self):
        trees = Trees.of_heads(torch.tensor([HEADS]))
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
        assert trees.path()[0, 0].tolist() == [0, -2, 1, 2, -4, -3]  # only "The" and "old" meet below the root

    @settings(max_examples=40, deadline=None)
    @given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=3), seed=st.integers(0, 2**16))
    def test_depths_paths_and_signs_are_those_of_the_graph(self, sizes, seed):
        words = max(sizes) + seed % 3  # some padding for all, at times
        heads = torch.full((len(sizes), words), -7)
        graphs = [random_tree(size, seed + index) for index, size in enumerate(sizes)]
        for row, graph in zip(heads, graphs, strict=True):
            for head, word in graph.edges:
                row[word - 1] = head
        trees = Trees.of_heads(heads, torch.tensor(sizes))
        depth, relative, path = trees.depth, trees.relative(), trees.path()
        for b, (size, graph) in enumerate(zip(sizes, graphs, strict=True)):
            for distances in (relative[b], path[b]):
                assert (distances[size:] == 0).all()
                assert (distances[:, size:] == 0).all()
            assert (depth[b, size:] == 0).all()
            from_top = nx.shortest_path_length(graph, 0)  # node 0 stands above the root
            apart = dict(nx.all_pairs_shortest_path_length(graph.to_undirected()))
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
                    assert path[b, i - 1, j - 1] == sign * apart[i][j]
                    if i in nx.ancestors(graph, j) | {j}:
                        assert relative[b, i - 1, j - 1] == sign * apart[i][j]

    def test_a_chain_is_as_deep_as_it_is_long(self):
        for length in (1, 2, 3, 64, 65):
            trees = Trees.of_heads(torch.arange(length)[None])
            assert trees.depth[0].tolist() == list(range(length))
            assert trees.path().equal(trees.relative())
            assert trees.relative()[0].equal(torch.arange(length)[:, None] - torch.arange(length))

    @pytest.mark.parametrize(
        ("heads", "lengths", "message"),
        [
            ([[0, 1, 2], [0, 3, 2]], None, "word 2 of sentence 2 is above itself"),
            ([[0, 3, 4, 3, 2]], None, "word 3 of sentence 1 is above itself"),  # word 2 only hangs from the circle
            ([[0, 2]], None, "word 2 of sentence 1 is above itself"),
            ([[0, 4, 1]], None, "word 2 of sentence 1 has a head that is not there"),
            ([[0, -1, 1]], None, "word 2 of sentence 1 has a head that is not there"),
            ([[0, 1, 1], [0, 3, 0]], [3, 2], "word 2 of sentence 2 has a head that is not there"),
            ([[0, 1, 0]], None, "word 3 of sentence 1 is a second root"),
            ([[0, 1], [2, 1]], None, "sentence 2 has no root"),
            ([[0, 1]], [3], r"lengths must lie between 0 and 2 words, but they are \[3\]"),
        ],
    )
    def test_what_is_no_tree_is_refused_by_the_name_of_the_word(self, heads, lengths, message):
        with pytest.raises(InputError, match=message):
            Trees.of_heads(torch.tensor(heads), None if lengths is None else torch.tensor(lengths))

    @pytest.mark.usefixtures("unchecked")
    def test_tensors_that_do_not_fit_are_refused_in_words(self):
        with pytest.raises(ShapeError, match=r"whole numbers \[batch, word\]"):
            Trees.of_heads(torch.tensor([0, 1]))
        with pytest.raises(ShapeError, match="there are 1 sentences"):
            Trees.of_heads(torch.tensor([[0, 1]]), torch.tensor([2, 2]))

    def test_depths_are_places_for_the_encodings(self):
        depth = Trees.of_heads(torch.tensor([HEADS, [0, 1, 1, 0, 0, 0]]), torch.tensor([6, 3])).depth
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

"""A source that is read step by step: what is covered, and the alignments by name."""

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import SCORES, Additive, Hard, LocalMonotonic, LocalPredictive, Sizes, Softmax
from qkv.nn.reading import ALIGNMENTS, Reader, alignment

BATCH, SOURCE, FEATURES, HIDDEN = 2, 4, 6, 6
LENGTHS = torch.tensor([4, 2])


def named(name: str):
    return alignment(name, HIDDEN, 2, "straight-through", "moving-average", 0.0)


def steps_of(reader: Reader, lengths: torch.Tensor | None = LENGTHS, steps: int = 3):
    """What is read in some steps, what is covered after each, and the weights that were seen."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(BATCH, SOURCE, FEATURES, generator=generator, dtype=torch.float64)
    queries = torch.randn(steps, BATCH, 1, HIDDEN, generator=generator, dtype=torch.float64)
    source = reader.look(values, lengths)
    covered, found = reader.uncovered(source), []
    with qkv.watch(nn.ModuleDict({"decoder": reader})) as seen:
        for step, query in enumerate(queries):
            context, covered = reader(query, source, torch.tensor(step), covered)
            found.append((context, covered))

    return values, queries, found, seen["decoder"].weights[:, 0]


def test_with_coverage_the_additive_score_is_that_of_the_paper():
    torch.manual_seed(0)
    score = Additive(HIDDEN, FEATURES, 5)
    reader = Reader(score, Softmax(), FEATURES, coverage=True).double()
    values, queries, found, weights = steps_of(reader)
    w, u, v, mark = score.query_weight[0], score.key_weight[0], score.vector[0], reader.mark
    for row, length in enumerate(LENGTHS):
        covered = [torch.zeros(()).double()] * SOURCE
        for t in range(3):
            e = torch.stack(
                [v @ torch.tanh(queries[t, row, 0] @ w + values[row, i] @ u + mark * covered[i]) for i in range(length)]
            )
            a = e.softmax(dim=0)
            covered = [covered[i] + a[i] if i < length else covered[i] for i in range(SOURCE)]
            context = sum(a[i] * values[row, i] for i in range(length))
            torch.testing.assert_close(found[t][0][row, 0], context)
            torch.testing.assert_close(found[t][1][row], torch.stack(covered))
            torch.testing.assert_close(weights[row, t, :length], a)


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("score", sorted(set(SCORES) - {"location"}))
def test_what_is_covered_is_the_sum_of_the_weights_so_far(score, align):
    torch.manual_seed(0)
    made = SCORES[score].sized(Sizes(HIDDEN, FEATURES, 5, SOURCE))
    reader = Reader(made, named(align), FEATURES, coverage=True).double().eval()
    values, _, found, weights = steps_of(reader)
    for t, (context, covered) in enumerate(found):
        torch.testing.assert_close(covered, weights[:, : t + 1].sum(dim=1))
        torch.testing.assert_close(context, weights[:, t : t + 1] @ values)


def test_without_coverage_nothing_is_carried_from_step_to_step():
    reader = Reader(Additive(HIDDEN, FEATURES, 5), Softmax(), FEATURES).double()
    _, _, found, _ = steps_of(reader, lengths=None)
    assert [covered for _, covered in found] == [None] * 3


def test_alignments_have_what_a_recipe_gives_them():
    assert isinstance(named("soft"), Softmax)
    local, predicted = named("local_m"), named("local_p")
    assert isinstance(local, LocalMonotonic)
    assert isinstance(predicted, LocalPredictive)
    assert (local.window, predicted.window) == (2, 2)
    hard = alignment("hard", HIDDEN, 2, "reinforce", "learned", 0.25)
    assert isinstance(hard, Hard)
    assert (hard.estimator, hard.entropy) == ("reinforce", 0.25)
    assert hard.baseline.linear.in_features == HIDDEN
    assert alignment("hard", HIDDEN, 2, "reinforce", "none", 0.0).baseline is None

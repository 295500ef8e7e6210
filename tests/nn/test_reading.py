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
    return alignment(name, HIDDEN, 2, "straight-through", "moving-average", 0.0, 1.0)


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
    made = SCORES[score].from_sizes(Sizes(HIDDEN, FEATURES, 5, SOURCE))
    reader = Reader(made, named(align), FEATURES, coverage=True).double().eval()
    values, _, found, weights = steps_of(reader)
    for t, (context, covered) in enumerate(found):
        torch.testing.assert_close(covered, weights[:, : t + 1].sum(dim=1))
        torch.testing.assert_close(context, weights[:, t : t + 1] @ values)


def test_under_autocast_what_is_covered_goes_on_adding_up_over_hundreds_of_steps():
    torch.manual_seed(0)
    reader = Reader(Additive(HIDDEN, FEATURES, 5), Softmax(), FEATURES, coverage=True)
    values, queries = torch.randn(BATCH, SOURCE, FEATURES), torch.randn(200, BATCH, 1, HIDDEN)
    found = []
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            source = reader.look(values, LENGTHS)
            covered = reader.uncovered(source)
            for step, query in enumerate(queries):
                _, covered = reader(query, source, torch.tensor(step), covered)
        found.append(covered)
    exact, short = found
    assert source.keys.dtype == torch.bfloat16
    torch.testing.assert_close(short.sum(dim=1), torch.full((BATCH,), 200.0), rtol=1e-3, atol=0)
    torch.testing.assert_close(short, exact, rtol=0, atol=1e-3 * 200)


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
    hard = alignment("hard", HIDDEN, 2, "reinforce", "learned", 0.25, 0.5)
    assert isinstance(hard, Hard)
    assert (hard.estimator, hard.entropy, hard.discount) == ("reinforce", 0.25, 0.5)
    assert hard.baseline.linear.in_features == HIDDEN
    assert alignment("hard", HIDDEN, 2, "reinforce", "none", 0.0, 1.0).baseline is None

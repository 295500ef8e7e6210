"""Attention over the source: coverage, and alignments by name."""

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import SCORES, Additive, Hard, LocalMonotonic, LocalPredictive, Sizes, Softmax, build_score
from qkv.nn.source_attention import ALIGNMENTS, SourceAttention, build_alignment

BATCH, SOURCE, FEATURES, HIDDEN = 2, 4, 6, 6
LENGTHS = torch.tensor([4, 2])


def make_alignment(name: str):
    return build_alignment(name, HIDDEN, 2, "straight-through", "moving-average", 0.0, 1.0)


def run_steps(attention: SourceAttention, lengths: torch.Tensor | None = LENGTHS, steps: int = 3):
    """Run some steps; return the inputs, contexts and coverage of each step, and the weights."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(BATCH, SOURCE, FEATURES, generator=generator, dtype=torch.float64)
    queries = torch.randn(steps, BATCH, 1, HIDDEN, generator=generator, dtype=torch.float64)
    source = attention.precompute(values, lengths)
    coverage, actual = attention.init_coverage(source), []
    with qkv.watch(nn.ModuleDict({"decoder": attention})) as seen:
        for step, query in enumerate(queries):
            context, coverage = attention(query, source, torch.tensor(step), coverage)
            actual.append((context, coverage))

    return values, queries, actual, seen["decoder"].weights[:, 0]


def test_coverage_with_the_additive_score_matches_the_paper():
    torch.manual_seed(0)
    score = Additive(HIDDEN, FEATURES, 5)
    attention = SourceAttention(score, Softmax(), FEATURES, coverage=True).double()
    values, queries, actual, weights = run_steps(attention)
    w, u, v, w_coverage = score.query_weight[0], score.key_weight[0], score.vector[0], attention.coverage_weight
    for row, length in enumerate(LENGTHS):
        coverage = [torch.zeros(()).double()] * SOURCE
        for t in range(3):
            e = torch.stack(
                [
                    v @ torch.tanh(queries[t, row, 0] @ w + values[row, i] @ u + w_coverage * coverage[i])
                    for i in range(length)
                ]
            )
            a = e.softmax(dim=0)
            coverage = [coverage[i] + a[i] if i < length else coverage[i] for i in range(SOURCE)]
            context = sum(a[i] * values[row, i] for i in range(length))
            torch.testing.assert_close(actual[t][0][row, 0], context)
            torch.testing.assert_close(actual[t][1][row], torch.stack(coverage))
            torch.testing.assert_close(weights[row, t, :length], a)


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("score", sorted(set(SCORES) - {"location"}))
def test_coverage_is_the_sum_of_the_weights_so_far(score, align):
    torch.manual_seed(0)
    score_module = build_score(score, Sizes(HIDDEN, FEATURES, 5, SOURCE))
    attention = SourceAttention(score_module, make_alignment(align), FEATURES, coverage=True).double().eval()
    values, _, actual, weights = run_steps(attention)
    for t, (context, coverage) in enumerate(actual):
        torch.testing.assert_close(coverage, weights[:, : t + 1].sum(dim=1))
        torch.testing.assert_close(context, weights[:, t : t + 1] @ values)


def test_under_autocast_coverage_accumulates_in_float32():
    torch.manual_seed(0)
    attention = SourceAttention(Additive(HIDDEN, FEATURES, 5), Softmax(), FEATURES, coverage=True)
    values, queries = torch.randn(BATCH, SOURCE, FEATURES), torch.randn(200, BATCH, 1, HIDDEN)
    actual = []
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            source = attention.precompute(values, LENGTHS)
            coverage = attention.init_coverage(source)
            for step, query in enumerate(queries):
                _, coverage = attention(query, source, torch.tensor(step), coverage)
        actual.append(coverage)
    exact, short = actual
    assert source.keys.dtype == torch.bfloat16
    torch.testing.assert_close(short.sum(dim=1), torch.full((BATCH,), 200.0), rtol=1e-3, atol=0)
    torch.testing.assert_close(short, exact, rtol=0, atol=1e-3 * 200)


def test_without_coverage_there_is_no_coverage_state():
    attention = SourceAttention(Additive(HIDDEN, FEATURES, 5), Softmax(), FEATURES).double()
    _, _, actual, _ = run_steps(attention, lengths=None)
    assert [coverage for _, coverage in actual] == [None] * 3


def test_alignments_are_built_with_their_options():
    assert isinstance(make_alignment("soft"), Softmax)
    local, predicted = make_alignment("local_m"), make_alignment("local_p")
    assert isinstance(local, LocalMonotonic)
    assert isinstance(predicted, LocalPredictive)
    assert (local.window, predicted.window) == (2, 2)
    hard = build_alignment("hard", HIDDEN, 2, "reinforce", "learned", 0.25, 0.5)
    assert isinstance(hard, Hard)
    assert (hard.estimator, hard.entropy, hard.discount) == ("reinforce", 0.25, 0.5)
    assert hard.baseline.linear.in_features == HIDDEN
    assert build_alignment("hard", HIDDEN, 2, "reinforce", "none", 0.0, 1.0).baseline is None

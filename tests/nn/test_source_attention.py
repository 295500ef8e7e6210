"""Attention over the source: coverage, and errors of terms that do not fit."""

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import Additive, Sizes, Softmax
from qkv.config import Term
from qkv.errors import ConfigError
from qkv.nn.multi_head import check_terms
from qkv.nn.source_attention import CoverageAttention, SourceAttention
from qkv.registry import registered

BATCH, SOURCE, FEATURES, HIDDEN = 2, 4, 6, 6
LENGTHS = torch.tensor([4, 2])
SIZES = Sizes(HIDDEN, FEATURES, 5, SOURCE)


def run_steps(attention: SourceAttention, lengths: torch.Tensor | None = LENGTHS, steps: int = 3):
    """Run some steps; return the inputs, the context and coverage of each step, and the weights."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(BATCH, SOURCE, FEATURES, generator=generator, dtype=torch.float64)
    queries = torch.randn(steps, BATCH, 1, HIDDEN, generator=generator, dtype=torch.float64)
    source, actual = attention.precompute(values, lengths), []
    with qkv.watch(nn.ModuleDict({"decoder": attention})) as seen:
        for step, query in enumerate(queries):
            context, source = attention(query, source, torch.tensor(step))
            actual.append((context, source.coverage))
    return values, queries, actual, seen["decoder"].weights[:, 0]


def test_coverage_with_the_additive_score_matches_the_paper():
    torch.manual_seed(0)
    score = Additive(HIDDEN, FEATURES, 5)
    attention = CoverageAttention(score, Softmax(), FEATURES).double()
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


@pytest.mark.parametrize("align", registered("align"))
@pytest.mark.parametrize("score", sorted(set(registered("score")) - {"location"}))
def test_coverage_is_the_sum_of_the_weights_so_far(score, align):
    torch.manual_seed(0)
    terms = Term("score", score).build(SIZES), Term("align", align).build(SIZES)
    attention = CoverageAttention(*terms, FEATURES).double().eval()
    values, _, actual, weights = run_steps(attention)
    for t, (context, coverage) in enumerate(actual):
        torch.testing.assert_close(coverage, weights[:, : t + 1].sum(dim=1))
        torch.testing.assert_close(context, weights[:, t : t + 1] @ values)


def test_under_autocast_coverage_accumulates_in_float32():
    torch.manual_seed(0)
    attention = CoverageAttention(Additive(HIDDEN, FEATURES, 5), Softmax(), FEATURES)
    values, queries = torch.randn(BATCH, SOURCE, FEATURES), torch.randn(200, BATCH, 1, HIDDEN)
    actual = []
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            source = attention.precompute(values, LENGTHS)
            for step, query in enumerate(queries):
                _, source = attention(query, source, torch.tensor(step))
        actual.append(source.coverage)
    exact, short = actual
    assert source.keys.dtype == torch.bfloat16
    torch.testing.assert_close(short.sum(dim=1), torch.full((BATCH,), 200.0), rtol=1e-3, atol=0)
    torch.testing.assert_close(short, exact, rtol=0, atol=1e-3 * 200)


def test_without_coverage_the_source_does_not_change():
    attention = SourceAttention(Additive(HIDDEN, FEATURES, 5), Softmax()).double()
    source = attention.precompute(torch.randn(BATCH, SOURCE, FEATURES).double(), None)
    assert attention(torch.randn(BATCH, 1, HIDDEN).double(), source, torch.tensor(0))[1] is source


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_the_backend_reaches_the_operator(backend):
    attention = SourceAttention(Additive(HIDDEN, FEATURES, 5), Softmax(), backend)
    assert attention.attend.backend == backend
    source = attention.precompute(torch.randn(BATCH, SOURCE, FEATURES), LENGTHS)
    if backend == "sdpa":
        with pytest.raises(qkv.attention.Unsupported):
            attention(torch.randn(BATCH, 1, HIDDEN), source, torch.tensor(0))
    else:
        attention(torch.randn(BATCH, 1, HIDDEN), source, torch.tensor(0))


@pytest.mark.parametrize(
    ("score", "align", "key"),
    [
        (Term("score", "dot"), Term("align", "softmax"), "score"),
        (Term("score", "cosine"), Term("align", "softmax"), "score"),
        (Term("score", "low_rank", {"rank": 0}), Term("align", "softmax"), "score"),
        (Term("score", "additive"), Term("align", "hard", {"discount": 2.0}), "align"),
        (Term("score", "additive"), Term("align", "hard", {"entropy": 0.1}), "align"),
        (Term("score", "additive"), Term("align", "local_p", {"window": 0}), "align"),
    ],
)
def test_terms_that_do_not_fit_raise_with_their_key(score, align, key):
    with pytest.raises(ConfigError, match=f"^{key}"):
        check_terms(SIZES._replace(key=FEATURES + 1), cross_attention=True, align=align, score=score)


def test_a_check_draws_no_random_numbers():
    before = torch.get_rng_state()
    check_terms(SIZES, cross_attention=True, align=Term("align", "local_p"), score=Term("score", "additive"))
    assert torch.get_rng_state().equal(before)

"""The operator against a hand-written oracle, on every backend that supports it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.attention import (
    Additive,
    Align,
    Attend,
    Causal,
    Dense,
    Dot,
    Mask,
    Padding,
    Position,
    Prefix,
    Relative,
    ScaledDot,
    Score,
    Softmax,
    Window,
    attend,
)
from qkv.attention.backends import BACKENDS, choose
from qkv.attention.operator import build_request
from qkv.attention.position import Bias
from qkv.attention.score_shape import ScoreShape
from qkv.errors import InputError, ShapeError, Unsupported
from tests.attention.terms import ALIGNS, Make, Sizes

EAGER = ("reference", "sdpa")  # Triton's interpreter is too slow here; it and flex are in test_conformance

# Rounding errors grow with the number of summands; this many units of the dtype's precision are enough here.
ROUNDING_UNITS = 256


def tolerance(dtype: torch.dtype) -> float:
    return ROUNDING_UNITS * torch.finfo(dtype).eps


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, score: Score, allowed: Tensor | None, temperature: float
) -> Tensor:
    """Attention with loops and scalars, in float64: one query at a time, over its unmasked keys only."""
    batch, heads, queries, _ = query.shape
    output = torch.zeros(batch, heads, queries, value.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for q in range(queries):
                visible = [k for k in range(key.shape[2]) if allowed is None or allowed[b, h, q, k]]
                scores = [one_score(score, query[b, h, q], key[b, h, k], h) / temperature for k in visible]
                total = sum((s.exp() for s in scores), torch.zeros((), dtype=torch.float64))
                for k, s in zip(visible, scores, strict=True):
                    output[b, h, q] = output[b, h, q] + s.exp() / total * value[b, h, k]
    return output


def one_score(score: Score, query: Tensor, key: Tensor, head: int) -> Tensor:
    """The score's formula, for one query and one key."""
    if isinstance(score, Additive):
        head = head if score.vector.shape[0] > 1 else 0
        return score.vector[head] @ torch.tanh(query @ score.query_weight[head] + key @ score.key_weight[head])
    scale = 1.0 if isinstance(score, Dot) else score.scale or 1 / math.sqrt(len(query))
    return scale * (query @ key)


SCORES = {
    "dot": lambda dim, heads: Dot(),
    "scaled dot": lambda dim, heads: ScaledDot(),
    "scaled dot with its own scale": lambda dim, heads: ScaledDot(scale=0.3),
    "additive": lambda dim, heads: Additive(dim, dim, 5),
    "additive, a network for each head": lambda dim, heads: Additive(dim, dim, 5, heads=heads),
}

MASKS = {
    "none": lambda lengths: None,
    "causal": lambda lengths: Causal(),
    "padding": lambda lengths: Padding(lengths),
    "causal and padding": lambda lengths: Causal() & Padding(lengths),
    "not causal, or padding": lambda lengths: ~Causal() | Padding(lengths),
}


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a sum with distinct coefficients, so that errors cannot cancel."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    if not output.requires_grad:  # all queries of the oracle are fully masked
        return [torch.zeros_like(tensor) for tensor in inputs]
    return list(torch.autograd.grad((output * weight).sum(), inputs, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize("backend", EAGER)
@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("score_name", SCORES)
@settings(max_examples=6, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 5),
    keys=st.integers(1, 7),
    dim=st.sampled_from([1, 3, 8, 17]),
    temperature=st.sampled_from([1.0, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_output_and_gradients_match_the_hand_written_formula(
    backend, mask_name, score_name, batch, heads, queries, keys, dim, temperature, seed
):
    torch.manual_seed(seed)
    score = SCORES[score_name](dim, heads)
    lengths = torch.randint(0, keys + 1, (batch,))
    mask = MASKS[mask_name](lengths)
    shapes = [(batch, heads, queries, dim), (batch, heads, keys, dim), (batch, heads, keys, 4)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    terms = {"score": score, "mask": mask, "align": Softmax(temperature)}
    request = build_request(*inputs, **terms)
    if BACKENDS[backend].supports(request) is not None:
        with pytest.raises(Unsupported, match="is not a dot product"):
            attend(*inputs, backend=backend, **terms)
        return
    actual = attend(*inputs, backend=backend, **terms).output
    grads = gradients(actual, inputs)

    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    allowed = None if mask is None else mask.to_dense(request.shape).expand(batch, heads, queries, keys)
    expected = by_hand(*exact, score.double(), allowed, temperature)
    close = {"rtol": tolerance(torch.float32), "atol": tolerance(torch.float32)}
    torch.testing.assert_close(actual.double(), expected, **close)
    for grad, truth in zip(grads, gradients(expected, exact), strict=True):
        torch.testing.assert_close(grad.double(), truth, **close)


@pytest.mark.parametrize("backend", EAGER)
@pytest.mark.parametrize("mask", [Padding(torch.tensor([0, 3])), Dense(torch.zeros(2, 1, 4, 5, dtype=torch.bool))])
def test_fully_masked_queries_have_zero_output_and_gradient(backend, mask):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, n, 8, requires_grad=True) for n in (4, 5, 5)]
    output = attend(*inputs, mask=mask, backend=backend).output
    assert (output[0] == 0).all()
    for grad in gradients(output, inputs):
        assert grad.isfinite().all()
        assert (grad[0] == 0).all()


@pytest.mark.parametrize("backend", EAGER)
def test_causal_masking_matches_recomputing_each_prefix(backend):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 6, 8) for _ in range(3))
    full = attend(query, key, value, mask=Causal(), backend=backend).output
    for length in range(1, 7):
        prefix = attend(query[:, :, :length], key[:, :, :length], value[:, :, :length], mask=Causal(), backend=backend)
        last = attend(query[:, :, length - 1 : length], key[:, :, :length], value[:, :, :length], mask=Causal())
        torch.testing.assert_close(full[:, :, :length], prefix.output)
        torch.testing.assert_close(full[:, :, length - 1 : length], last.output)


def test_causal_aligns_the_last_query_with_the_last_key():
    query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 5, 4)
    weights = attend(query, key, key, mask=Causal(), need_weights=True).weights
    assert (weights[0, 0] > 0).tolist() == [[True, True, True, True, False], [True, True, True, True, True]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("backend", EAGER)
def test_weights_sum_to_one_and_match_output(backend, temperature):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    mask = Causal() & Padding(torch.tensor([5, 2]))
    result = attend(query, key, value, mask=mask, align=Softmax(temperature), backend=backend, need_weights=True)
    torch.testing.assert_close(result.weights.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
    torch.testing.assert_close(result.weights @ value, result.output)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8) / temperature
    allowed = mask.to_dense(ScoreShape(2, 3, 5, 5, query.device))
    torch.testing.assert_close(scores.masked_fill(~allowed, -torch.inf).softmax(-1), result.weights)


def test_weights_are_returned_only_if_requested():
    x = torch.randn(1, 1, 3, 4)
    assert attend(x, x, x).weights is None
    assert attend(x, x, x, backend="reference").weights is None


def test_self_attention_without_positions_is_permutation_equivariant():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 6, 8)
    order = torch.randperm(6)
    torch.testing.assert_close(attend(x, x, x).output[:, :, order], attend(*(x[:, :, order],) * 3).output)


def test_transformed_keys_match_raw_keys():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 1, 1, 6), torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 3)
    score = Additive(6, 4, 7)
    torch.testing.assert_close(
        attend(query, score.keys(key), value, score=score).output, attend(query, key, value, score=score).output
    )


def test_gradcheck_of_the_additive_score():
    torch.manual_seed(0)
    score = Additive(3, 4, 5, heads=2).double()
    query, key, value = (
        torch.randn(2, 2, n, d, dtype=torch.float64, requires_grad=True) for n, d in ((2, 3), (3, 4), (3, 2))
    )
    parameters = tuple(score.parameters())
    assert torch.autograd.gradcheck(
        lambda q, k, v, *_: attend(q, k, v, score=score, mask=Padding(torch.tensor([3, 2]))).output,
        (query, key, value, *parameters),
    )


def test_dropout_preserves_the_mean():
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1000, 4)
    value = torch.ones(1, 1, 1000, 1)
    for backend in EAGER:
        outputs = [attend(query, key, value, dropout=0.3, backend=backend).output.item() for _ in range(30)]
        # Each output is a mean of 1,000 draws of 0 or 1/0.7: its standard deviation is 0.0207.
        assert abs(sum(outputs) / 30 - 1) < 4 * 0.0207 / math.sqrt(30)
        assert max(outputs) != min(outputs)


def test_low_precision_is_close_to_float64():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 40, 16, dtype=torch.float64) for _ in range(3))
    truth = attend(query, key, value, mask=Causal()).output
    for backend in EAGER:
        low = attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), mask=Causal(), backend=backend).output
        torch.testing.assert_close(low.double(), truth, rtol=0, atol=4 * torch.finfo(torch.bfloat16).eps)


class TestBackends:
    """A named backend runs or raises; auto always finds one."""

    def test_auto_uses_sdpa_for_dot_products_and_else_the_reference(self):
        x = torch.randn(1, 1, 3, 4)
        dot = build_request(x, x, x, mask=Causal())
        additive = build_request(x, x, x, score=Additive(4, 4, 4))
        assert choose(dot).name == "sdpa"
        assert choose(additive).name == "reference"

    def test_a_named_backend_never_falls_back(self):
        x = torch.randn(1, 1, 3, 4)
        with pytest.raises(Unsupported) as caught:
            attend(x, x, x, score=Additive(4, 4, 4), backend="sdpa")
        assert caught.value.backend == "sdpa"
        assert "Additive" in caught.value.reason

    def test_unknown_backends_list_the_known_ones(self):
        x = torch.randn(1, 1, 3, 4)
        with pytest.raises(InputError, match="auto, sdpa, flex, triton, gather, reference"):
            attend(x, x, x, backend="flash")


class Nearness(Position):
    """A position term that subtracts the distance between query and key."""

    adds_bias = True

    def bias(self, query: Tensor, shape: ScoreShape) -> Bias:
        return lambda index: -(index.query_position - index.key).abs()


class Manhattan(Score):
    """A score that is not a dot product: minus the Manhattan distance."""

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(dim=-1)


class TestNewTerms:
    """Custom terms."""

    def test_a_custom_score_runs_on_the_reference_and_is_rejected_by_sdpa(self):
        torch.manual_seed(0)
        x = torch.randn(1, 2, 4, 3)
        expected = torch.softmax(-torch.cdist(x, x, p=1), dim=-1) @ x
        torch.testing.assert_close(attend(x, x, x, score=Manhattan()).output, expected)
        with pytest.raises(Unsupported, match="Manhattan"):
            attend(x, x, x, score=Manhattan(), backend="sdpa")

    def test_a_custom_position_is_applied_before_the_mask(self):
        torch.manual_seed(0)
        x = torch.randn(1, 2, 4, 8)
        bias = -(torch.arange(4.0)[:, None] - torch.arange(4.0)).abs()
        bias = bias.masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf)
        expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)
        for backend in EAGER:
            result = attend(x, x, x, position=Nearness(), mask=Causal(), backend=backend)
            torch.testing.assert_close(result.output, expected)

    def test_a_custom_mask_combines_with_built_in_ones(self):
        class EverySecond(Mask):
            def allows(self, index):
                return index.key % 2 == 0

        x = torch.randn(1, 1, 4, 4)
        weights = attend(x, x, x, mask=EverySecond() & Causal(), need_weights=True).weights
        assert (weights[0, 0, 3] > 0).tolist() == [True, False, True, False]


@pytest.mark.usefixtures("unchecked")
class TestWrongShapes:
    """Incompatible shapes raise."""

    def test_query_key_and_value_need_four_dimensions(self):
        with pytest.raises(ShapeError, match="4 dimensions"):
            attend(torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4))

    def test_batch_and_heads_must_match(self):
        with pytest.raises(ShapeError, match="batch and heads"):
            attend(torch.randn(2, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))

    def test_keys_and_values_must_have_the_same_length(self):
        with pytest.raises(ShapeError, match="3 keys"):
            attend(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 2, 4))

    @pytest.mark.parametrize("backend", EAGER)
    @pytest.mark.parametrize("mask", [Padding(torch.tensor([1, 2, 3])), Dense(torch.ones(1, 3, 5, 3).bool())])
    def test_a_mask_must_broadcast_to_the_scores(self, backend, mask):
        x = torch.randn(2, 1, 3, 4)
        with pytest.raises(ShapeError, match="broadcast"):
            attend(x, x, x, mask=mask, backend=backend)

    def test_masks_check_their_dtype(self):
        with pytest.raises(ShapeError, match="boolean"):
            Dense(torch.ones(1, 1, 3, 3))
        with pytest.raises(ShapeError, match="integer"):
            Padding([3, 2])

    @pytest.mark.parametrize("backend", EAGER)
    def test_a_dot_product_needs_queries_and_keys_of_the_same_size(self, backend):
        with pytest.raises(ShapeError, match="same size"):
            attend(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 5), torch.randn(1, 1, 3, 5), backend=backend)


@pytest.mark.usefixtures("unchecked")
class TestWrongTerms:
    """Terms of the wrong type and mixed dtypes raise."""

    @pytest.mark.parametrize(
        ("term", "message"),
        [
            ({"score": "dot"}, "score.*str"),
            ({"score": Dot}, "score.*Dot"),
            ({"mask": [True, False, True]}, "mask.*list"),
            ({"align": None}, "align.*NoneType"),
            ({"start": 1.5}, "start.*float"),
        ],
    )
    def test_terms_of_the_wrong_type_raise(self, term, message):
        x = torch.randn(1, 1, 3, 4)
        with pytest.raises(InputError, match=message):
            attend(x, x, x, **term)

    def test_mixed_dtypes_raise(self):
        x = torch.randn(1, 1, 3, 4)
        with pytest.raises(ShapeError, match="same dtype"):
            attend(x, x.double(), x)

    def test_a_dense_mask_needs_four_dimensions(self):
        with pytest.raises(ShapeError, match="Dense"):
            Dense(torch.ones(3, 3).bool())


def test_half_precision_scores_neither_overflow_nor_leak_masked_keys():
    query, key = torch.full((1, 1, 4, 64), -300.0), torch.full((1, 1, 4, 64), 300.0)
    value = torch.arange(4.0).view(1, 1, 4, 1)
    expected = torch.tensor([0.0, 0.5, 1.0, 1.5])
    for dtype in (torch.float16, torch.bfloat16):
        for backend in EAGER:
            result = attend(query.to(dtype), key.to(dtype), value.to(dtype), mask=Causal(), backend=backend)
            torch.testing.assert_close(result.output.flatten().float(), expected)


@pytest.mark.parametrize("align", ALIGNS)
def test_without_keys_the_output_is_zero(align):
    make = Make(Sizes(keys=0), torch.float32, torch.float32)
    query, none = torch.randn(2, 2, 4, 6), torch.randn(2, 2, 0, 6)
    assert attend(query, none, none, align=ALIGNS[align](make), backend="reference").output.eq(0).all()


@pytest.mark.usefixtures("unchecked")
class TestInvalidValues:
    """Invalid values raise before anything is computed."""

    @pytest.mark.parametrize("dropout", [-0.1, 1.5, math.nan])
    def test_dropout_must_be_a_probability(self, dropout):
        x = torch.randn(1, 1, 3, 4)
        with pytest.raises(InputError, match="dropout"):
            attend(x, x, x, dropout=dropout)

    def test_a_module_checks_its_backend_on_construction(self):
        with pytest.raises(InputError, match="unknown backend"):
            Attend(backend="sdp")

    def test_window_sizes_must_be_integers(self):
        with pytest.raises(InputError, match="integers"):
            Window(1.5, 0)

    @pytest.mark.parametrize("make", [Padding, Prefix])
    def test_boolean_lengths_raise(self, make):
        with pytest.raises(ShapeError, match="integer"):
            make(torch.tensor([True, False]))

    def test_value_vectors_of_the_wrong_size_raise(self):
        x, value = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 4)
        with pytest.raises(ShapeError, match="value_dim=4"):
            attend(x, x, value, position=Relative(8, 2))


class Broadcast(Score):
    """A score whose result has one key, which would be broadcast to all."""

    def compare(self, query, key):
        return query.sum(-1, keepdim=True)


class OneKey(Align):
    def compute_weights(self, inputs):
        return inputs.scores.softmax(-1)[..., :1]


@pytest.mark.parametrize(("terms", "name"), [({"score": Broadcast()}, "Broadcast"), ({"align": OneKey()}, "OneKey")])
def test_a_term_that_returns_another_shape_is_named(terms, name):
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ShapeError, match=name):
        attend(x, x, x, **terms)

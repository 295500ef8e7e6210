"""A call of the operator settled once, explained in words, and cheap to make."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from qkv.attention import (
    Additive,
    ALiBi,
    Causal,
    Documents,
    Keys,
    LocalMonotonic,
    Padding,
    Relative,
    Rotary,
    ScaledDot,
    Softmax,
    Sparsemax,
    Window,
    attend,
    explain,
    plan,
)  # fmt: skip
from qkv.attention.backends import BACKENDS
from qkv.errors import InputError, ShapeError, Unsupported
from tests.attention.terms import ALIGNS, MASKS, POSITIONS, SCORES, Make, Sizes

SIZES = Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=5, dim=6, value_dim=3)
MAKE = Make(SIZES, torch.float64, torch.float64)
FUSED = ("dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors this small are computed sooner by one thread than two can agree on who does what."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs(seed: int = 0, heads: int = 2, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return (
        MAKE.tensor(2, heads, 4, 6, seed=seed + 1),
        MAKE.tensor(2, kv_heads, 5, 6, seed=seed + 2),
        MAKE.tensor(2, kv_heads, 5, 3, seed=seed + 3),
    )


def assert_plan_serves(tensors=inputs, **terms: object) -> None:
    """The plan reads what attend reads, from the tensors it was made with and from others of their sizes."""
    settled = plan(*tensors(), **terms)
    for seed in (0, 20, 40):
        found, expected = settled(*tensors(seed)), attend(*tensors(seed), **terms)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or one.equal(other)


class TestPlan:
    """A plan reads what `attend` reads."""

    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize("score", SCORES)
    def test_a_plan_reads_what_attend_reads_for_every_score_and_mask(self, score, mask):
        terms = {"score": SCORES[score](MAKE), "mask": MASKS[mask](MAKE)}
        assert_plan_serves(**terms)
        assert_plan_serves(**terms, backend="reference", need_weights=True)

    @pytest.mark.parametrize("mask", ["everything", "causal", "padding"])
    @pytest.mark.parametrize("align", ALIGNS)
    def test_a_plan_reads_what_attend_reads_for_every_alignment(self, align, mask):
        assert_plan_serves(align=ALIGNS[align](MAKE), mask=MASKS[mask](MAKE))

    @pytest.mark.parametrize("mask", ["everything", "causal", "padding"])
    @pytest.mark.parametrize("position", POSITIONS)
    def test_a_plan_reads_what_attend_reads_for_every_position(self, position, mask):
        assert_plan_serves(position=POSITIONS[position](MAKE), mask=MASKS[mask](MAKE))

    @pytest.mark.parametrize("start", [0, 1, torch.tensor(1), torch.tensor([0, 1])])
    @pytest.mark.parametrize("position", [None, Rotary(6), ALiBi(2)])
    def test_a_plan_keeps_the_place_where_its_queries_stand(self, position, start):
        for mask in (Causal(), Window(1, 0), Documents(torch.tensor([[0, 0, 1, 1, 1]] * 2))):
            assert_plan_serves(position=position, mask=mask, start=start)

    @pytest.mark.parametrize("mask", MASKS)
    def test_a_plan_serves_heads_that_share_keys(self, mask):
        make = Make(Sizes(heads=4), torch.float64, torch.float64)
        assert_plan_serves(
            lambda seed=0: inputs(seed, heads=4), mask=MASKS[mask](make), score=Additive(6, 6, 4).double()
        )
        assert_plan_serves(lambda seed=0: inputs(seed, heads=4), mask=MASKS[mask](make))

    def test_a_plan_takes_prepared_keys_as_well_as_raw_ones(self):
        score = SCORES["additive"](MAKE)
        query, key, value = inputs()
        settled = plan(query, score.keys(key), value, score=score)
        expected = attend(query, key, value, score=score).output
        assert settled(query, score.keys(key), value).output.equal(expected)
        assert settled(query, key, value).output.equal(expected)

    @pytest.mark.parametrize("score", ["scaled dot", "additive"])
    def test_gradients_through_a_plan_are_those_of_attend(self, score):
        terms = {"score": SCORES[score](MAKE), "mask": MASKS["causal and padding"](MAKE)}
        tensors = [x.requires_grad_() for x in inputs()]
        settled = plan(*tensors, **terms)
        weights = [*tensors, *terms["score"].parameters()]
        for _ in range(2):  # a plan holds nothing of the graph of a call
            found = torch.autograd.grad(settled(*tensors).output.square().sum(), weights)
            expected = torch.autograd.grad(attend(*tensors, **terms).output.square().sum(), weights)
            for one, other in zip(found, expected, strict=True):
                assert one.equal(other)

    def test_a_plan_sees_what_its_score_has_learned_since(self):
        score = SCORES["bilinear"](MAKE)
        settled = plan(*inputs(), score=score)
        before = settled(*inputs()).output
        with torch.no_grad():
            score.weight.mul_(3)
        assert settled(*inputs()).output.equal(attend(*inputs(), score=score).output)
        assert not settled(*inputs()).output.equal(before)

    def test_dropout_goes_on_being_drawn(self):
        settled = plan(*inputs(), dropout=0.5, backend="reference")
        torch.manual_seed(0)
        found = [settled(*inputs()).output for _ in range(2)]
        torch.manual_seed(0)
        expected = [attend(*inputs(), dropout=0.5, backend="reference").output for _ in range(2)]
        assert all(one.equal(other) for one, other in zip(found, expected, strict=True))
        assert not found[0].equal(found[1])

    def test_a_plan_names_the_backend_that_attend_would_choose(self):
        assert plan(*inputs(), mask=Causal()).backend.name == "sdpa"
        assert plan(*inputs(), mask=Causal(), need_weights=True).backend.name == "reference"
        assert plan(*inputs(), align=Sparsemax()).backend.name == "reference"
        assert plan(*inputs(), backend="reference").backend is BACKENDS["reference"]

    def test_what_cannot_be_served_is_refused_when_the_plan_is_made(self):
        with pytest.raises(Unsupported, match="the alignment Sparsemax is not a softmax"):
            plan(*inputs(), align=Sparsemax(), backend="sdpa")
        with pytest.raises(InputError, match="unknown backend 'flash'"):
            plan(*inputs(), backend="flash")

    @pytest.mark.usefixtures("unchecked")
    def test_shapes_are_looked_at_when_the_plan_is_made(self):
        query, key, value = inputs()
        with pytest.raises(ShapeError, match="5 keys and 4 values"):
            plan(query, key, value[:, :, :4])

    @pytest.mark.usefixtures("unchecked")
    def test_a_plan_refuses_tensors_of_other_sizes(self):
        query, key, value = inputs()
        settled = plan(query, key[:, :, :4], value[:, :, :4], mask=Causal())
        with pytest.raises(ShapeError):
            settled(query, key, value)


class TestExplain:
    """Which backend runs, and why not the others."""

    @pytest.mark.parametrize("score", SCORES)
    def test_the_backend_named_is_the_one_that_runs(self, score):
        for align, position, mask in (("softmax", "nowhere", "causal"), ("sparsemax", "shaw", "padding")):
            terms = {
                "score": SCORES[score](MAKE),
                "align": ALIGNS[align](MAKE),
                "position": POSITIONS[position](MAKE),
                "mask": MASKS[mask](MAKE),
            }
            fused = score in FUSED and align == "softmax"
            assert explain(*inputs(), **terms).backend == ("sdpa" if fused else "reference")
            assert plan(*inputs(), **terms).backend.name == explain(*inputs(), **terms).backend

    def test_every_backend_is_accounted_for(self):
        for terms in ({}, {"backend": "reference"}, {"score": Additive(6, 6, 4).double(), "backend": "sdpa"}):
            found = explain(*inputs(), **terms)
            assert {found.backend, *found.reasons} - {None} == set(BACKENDS)
            assert all(found.reasons[name] for name in BACKENDS if name != found.backend)

    @pytest.mark.parametrize(
        ("terms", "reasons"),
        [
            ({"score": Additive(6, 6, 4).double()}, {"sdpa": "score Additive is not a dot product"}),
            ({"score": Additive(6, 6, 4).double()}, {"flex": "score Additive is not a dot product"}),
            ({"align": Sparsemax()}, {"sdpa": "alignment Sparsemax is not a softmax"}),
            ({"align": Sparsemax()}, {"flex": "alignment Sparsemax is not a softmax"}),
            ({"position": Relative(6, 2, 3).double()}, {"sdpa": "position Relative adds to what is read"}),
            ({"dropout": 0.1}, {"flex": "it has no dropout"}),
            ({"score": ScaledDot()}, {"triton": "score ScaledDot is not a network with a hidden layer"}),
        ],
    )
    def test_each_reason_names_the_term_that_stands_in_the_way(self, terms, reasons):
        for name, reason in reasons.items():
            assert reason in explain(*inputs(), **terms).reasons[name]
            asked = explain(*inputs(), **terms, backend=name)
            assert asked.backend is None
            assert reason in asked.reasons[name]
            with pytest.raises(Unsupported) as refused:
                attend(*inputs(), **terms, backend=name)
            assert refused.value.reason == asked.reasons[name]

    def test_a_named_backend_that_can_is_the_one_that_runs(self):
        for name in ("sdpa", "reference"):
            assert explain(*inputs(), backend=name).backend == name

    def test_weights_are_had_from_the_reference(self):
        assert explain(*inputs(), need_weights=True).backend == "reference"
        assert explain(*inputs(), need_weights=True, backend="sdpa").backend == "sdpa"

    def test_an_unknown_backend_is_told_the_known_ones(self):
        with pytest.raises(InputError, match=r"unknown backend 'flash' \(known: auto, sdpa"):
            explain(*inputs(), backend="flash")

    def test_nothing_runs_where_only_an_explanation_is_asked_for(self):
        def never(*_: object) -> Tensor:
            raise AssertionError("it ran")

        score = SCORES["additive"](MAKE)
        score.compare = never
        assert explain(*inputs(), score=score).backend == "reference"

    def test_it_reads_as_a_sentence_and_a_line_for_each_other_backend(self):
        first, *others = str(explain(*inputs(), score=Additive(6, 6, 4).double())).splitlines()
        assert first == "runs on reference"
        assert len(others) == len(BACKENDS) - 1
        assert all(line.startswith("  ") and len(line) < 120 for line in others)
        assert any("sdpa" in line and "the score Additive is not a dot product" in line for line in others)

    def test_it_says_so_where_the_backend_asked_for_cannot(self):
        text = str(explain(*inputs(), align=Sparsemax(), backend="sdpa"))
        assert text.startswith("runs on no backend")
        assert "sdpa: the alignment Sparsemax is not a softmax" in text
        assert "None" not in text

    def test_a_plan_and_its_explanation_take_the_same_terms(self):
        terms = {
            "score": ScaledDot(0.2),
            "position": ALiBi(2),
            "mask": Padding(torch.tensor([5, 3])),
            "align": Softmax(0.5),
            "dropout": 0.0,
            "backend": "sdpa",
            "need_weights": True,
            "start": 1,
        }
        assert explain(*inputs(), **terms).backend == plan(*inputs(), **terms).backend.name == "sdpa"
        assert_plan_serves(**terms)

    def test_prepared_keys_are_explained_as_raw_ones_are(self):
        query, key, value = inputs()
        found, expected = (explain(query, k, value, align=LocalMonotonic(1)) for k in (Keys(key), key))
        assert found == expected


OVERHEAD = """
import timeit
import torch
from torch.nn.functional import scaled_dot_product_attention as bare
from qkv.attention import Causal, Padding, attend, plan

torch.set_num_threads(1)
x = torch.randn(2, 2, 4, 8)
causal, padding = Causal(), Padding(torch.tensor([4, 3]))
seen = torch.tensor([[True] * 4, [True, True, True, False]]).view(2, 1, 1, 4)
settled = plan(x, x, x, mask=padding)
pairs = [
    (lambda: attend(x, x, x), lambda: bare(x, x, x)),
    (lambda: attend(x, x, x, mask=causal), lambda: bare(x, x, x, is_causal=True)),
    (lambda: settled(x, x, x), lambda: bare(x, x, x, seen)),
]
with torch.no_grad():
    for ours, theirs in pairs:
        torch.testing.assert_close(ours().output, theirs())
        # One after the other, again and again: what else the machine does then slows down both.
        times = [[timeit.timeit(call, number=50) for call in (ours, theirs)] for _ in range(120)]
        best_of_ours, best_of_theirs = map(min, zip(*times))
        print((best_of_ours - best_of_theirs) / 50 * 1e6)
"""


def test_the_operator_costs_at_most_15_microseconds_more_than_the_bare_kernel():
    # In a process of its own, where nothing checks shapes: that is for tests, and costs more than what is measured.
    for attempt in range(3):  # a machine that is busy all through may still spoil one
        done = subprocess.run([sys.executable, "-c", OVERHEAD], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        plain, causal, planned = map(float, done.stdout.split())
        if max(plain, causal, planned) <= 15 or attempt == 2:
            break
    assert plain <= 15
    assert causal <= 15
    assert planned <= 15

"""Claim 35: masking the future equals recomputing the attention of each prefix, and is cheaper."""

from functools import partial

import torch

from qkv.attention import Causal, KeyValue
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import Calls, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean, Ratio
from qkv.nn.multi_head import MultiHeadAttention
from qkv.registry import register
from qkv.types import Float, Tensor

DIM, HEADS = 64, 4
LENGTHS = {"small": (16, 32, 64, 128, 256), "full": (16, 32, 64, 128, 256, 512, 1024)}
LONG, CHECKED = 256, 64  # words of the timed and of the checked sequence
WAYS = ("causal mask", "every prefix", "one query at a time")


@register("claim", "masking-equals-recomputation")
class MaskingEqualsRecomputation(SampledClaim):
    """Difference and time of causal attention: with a mask, from every prefix, and one query at a time."""

    number = 35
    title = "Masking the future equals recomputation, and is cheaper"
    statement = (
        "A decoder must not attend to later words. Computing all scores at once and setting those of later words to "
        "minus infinity gives the same result as attention over each prefix, with less work."
    )
    notes = (Note("001", "Problem 3: looking into the future"), Note("004", "Issues: masking the future"))
    equation = "softmax(q_t . k_j, and -inf for j > t) v  =  softmax(q_t . k_1 ... q_t . k_t) v   for all t"
    source = ("src/qkv/attention/mask.py::Causal", "src/qkv/nn/multi_head.py::MultiHeadAttention.forward")
    hypothesis = (
        "The outputs are equal (relative difference below 1e-12 in float64). For 256 words, one pass with a mask is at "
        "least 10 times as fast as attention over every prefix, and faster than one query at a time over the keys so "
        "far, although that needs only half of the scores."
    )
    criteria = (
        Mean("difference: every prefix", high=1e-12),
        Mean("difference: one query at a time", high=1e-12),
        Ratio("time at 256 words: every prefix", "time at 256 words: causal mask", low=10.0),
        Ratio("time at 256 words: one query at a time", "time at 256 words: causal mask", low=1.0),
    )
    figure = (
        Panel(
            "Time of causal attention", "seconds, forward", tuple(f"time: {name}" for name in WAYS),
            x_label="words", log_x=True, log_y=True,
        ),
        Panel(
            "Difference from masked attention", "relative difference, float64", log_y=True,
            points=("difference: every prefix", "difference: one query at a time"),
        ),
    )  # fmt: skip
    limits = (
        "During generation the next word is not known, so that one query at a time, over cached keys and values, is "
        "the only way; the claim is about training and scoring, where all words are given."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        layer = MultiHeadAttention(DIM, HEADS).to(device)
        ways = {"causal mask": masked, "every prefix": every_prefix, "one query at a time": one_query_at_a_time}
        exact = MultiHeadAttention(DIM, HEADS).to(device, torch.float64)
        x = torch.randn(1, CHECKED, DIM, device=device, dtype=torch.float64)
        with torch.no_grad(), threads(1):
            expected = masked(exact, x)
            differences = {
                f"difference: {name}": max(float((way(exact, x) - expected).norm() / expected.norm()), 1e-17)
                for name, way in ways.items() if name != "causal mask"
            }  # fmt: skip
            calls: Calls = {}
            for length in LENGTHS[scale]:
                x = torch.randn(1, length, DIM, device=device)
                calls |= {(name, length): partial(way, layer, x) for name, way in ways.items()}
            times = seconds(calls, device, rounds=3)
        curves = {name: {length: times[name, length] for length in LENGTHS[scale]} for name in ways}
        values = {f"time at {LONG} words: {name}": curve[LONG] for name, curve in curves.items()}
        return Sample({**differences, **values}, {f"time: {name}": curve for name, curve in curves.items()})


def masked(layer: MultiHeadAttention, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
    """One pass over all words with a causal mask."""
    return layer(x, Causal())[0]


def every_prefix(layer: MultiHeadAttention, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
    """Attention over each prefix without a mask; the last output of each is kept."""
    return torch.cat([layer(x[:, :length])[0][:, -1:] for length in range(1, x.shape[1] + 1)], dim=1)


def one_query_at_a_time(
    layer: MultiHeadAttention, x: Float[Tensor, "batch length dim"]
) -> Float[Tensor, "batch length dim"]:
    """Attention of each word to the keys and values up to it, which are computed once."""
    memory = layer.keys_values(x)
    outputs = []
    for last in range(x.shape[1]):
        seen = KeyValue(memory.key[:, :, : last + 1], memory.value[:, :, : last + 1])
        outputs.append(layer.cross(x[:, last : last + 1], seen))
    return torch.cat(outputs, dim=1)

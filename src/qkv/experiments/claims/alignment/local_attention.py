"""Claim 38: local attention blends soft and hard attention."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

from qkv.attention import attend
from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.cost import Calls, seconds, threads
from qkv.experiments.claims.dates import SMALL_GRU
from qkv.experiments.claims.measurements import Measurements, Sample, merge
from qkv.experiments.claims.multi30k import FULL_RNN, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference, Exponent
from qkv.registry import register
from qkv.runtime.device import pick_device

DIM, WINDOW, LENGTHS = 256, 10, (1024, 4096, 16_384, 65_536)
LOCAL, HARD = '{ name = "local_p", window = 5 }', '{ name = "hard", anneal = 0.5 }'


@register("claim", "local-attention")
class LocalAttention(SweepClaim):
    """Quality of global, local and hard attention, and the time of one query over all keys and in a window."""

    number = 38
    title = "Local attention blends soft and hard attention"
    statement = (
        "Local attention, which averages a window around a predicted position, is a blend: it attends to a small part "
        "of the source like hard attention, and is differentiable and as good as soft attention."
    )
    notes = (Note("003", "Soft vs Hard Attention"), Note("003", "Global vs Local Attention"))
    equation = (
        "p_t = n sigmoid(v . tanh(W h_t)),   a_ts = softmax(s : |s - p_t| <= D) exp(-(s - p_t)^2 / (2 (D / 2)^2))"
    )
    source = ("src/qkv/attention/align.py::LocalPredictive", "src/qkv/attention/hard.py::Hard")
    hypothesis = (
        "With the same data, seeds and training settings, the score of local attention is less than 5 points below "
        "that of global attention, and higher than that of hard attention (exact match of dates in percent at small "
        "scale, BLEU of Multi30k at full scale). The time of one query in a window of 21 keys does not grow with the "
        "length (exponent below 0.2), while that over all keys does (exponent above 0.8 from 4,096 on)."
    )
    criteria = (
        Difference("score: local", "score: global", low=-5.0),
        Difference("score: local", "score: hard", low=0.0),
        Exponent("time: window", high=0.2),
        Exponent("time: all keys", low=0.8, min_x=4096),
    )
    figure = (
        Panel(
            "Luong decoder by attention", SCORE_LABEL,
            points=("score: global", "score: local", "score: hard"),
        ),
        Panel(
            "Time of one query, d = 256", "seconds", ("time: all keys", "time: window"),
            x_label="length n", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "The window has five tokens on each side in training. The trained models compute the scores of all keys, and "
        "save nothing on short sources: the time is that of attention to the keys of the window alone."
    )
    recipe: ClassVar = {"small": "dates-gru", "full": "multi30k-luong-general"}
    factors: ClassVar = {"model.align": ("softmax", LOCAL, HARD)}
    labels: ClassVar = {"align=softmax": "global", f"align={LOCAL}": "local", f"align={HARD}": "hard"}
    metric: ClassVar = {"small": "exact", "full": "bleu"}
    quantity = "score"
    overrides: ClassVar = {"small": (*SMALL_GRU, "model.decoder=luong", "model.score.name=bilinear"), "full": FULL_RNN}

    exclusive = True

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        trained = super().measure(scale, seeds, folder, device)
        times = merge({seed: Sample(series=times_of_query(pick_device(device))) for seed in seeds})
        return replace(trained, series=times.series)


def times_of_query(device: torch.device) -> dict[str, dict[int, float]]:
    """Return the seconds of one query by number of keys, over all keys and in a window in their middle."""
    calls: Calls = {}
    with torch.no_grad(), threads(1):
        for n in LENGTHS:
            query, key, value = (torch.randn(1, 1, size, DIM, device=device) for size in (1, n, n))
            near = slice(n // 2 - WINDOW, n // 2 + WINDOW + 1)
            calls["all keys", n] = partial(attend, query, key, value)
            calls["window", n] = partial(attend, query, key[:, :, near], value[:, :, near])
        times = seconds(calls, device, rounds=20)
    return {f"time: {name}": {n: times[name, n] for n in LENGTHS} for name in ("all keys", "window")}

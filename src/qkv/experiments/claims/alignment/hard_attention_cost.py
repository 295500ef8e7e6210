"""Claim 37: soft attention is expensive on large inputs, hard attention cheaper at inference."""

from functools import partial

import torch

from qkv.attention import Hard, attend
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import Calls, multiply_adds, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Exponent, Ratio
from qkv.registry import register

DIM, LONG = 256, 65_536
LENGTHS = (1024, 4096, 16_384, LONG)
KINDS = ("soft", "hard")


@register("claim", "hard-attention-cost")
class HardAttentionCost(SampledClaim):
    """Operations and time of one query over keys and values of increasing number, with soft and hard attention."""

    number = 37
    title = "Soft attention is expensive on large inputs, hard attention cheaper"
    statement = (
        "Soft attention is expensive if the input is large, since it averages all of it; hard attention, which selects "
        "one part, needs less computation at inference."
    )
    notes = (Note("003", "Soft vs Hard Attention"),)
    equation = "soft: sum_i a_i v_i;   hard: v_j with j = argmax_i s_i;   s_i = q . k_i / sqrt(d) in both"
    source = (
        "src/qkv/attention/backends/gather.py::Gather",
        "src/qkv/attention/align.py::Softmax",
        "src/qkv/attention/hard.py::Hard",
    )
    hypothesis = (
        "The time of one query with soft attention grows with the length (exponent above 0.8 from 4,096 on), and at "
        "65,536 keys hard attention needs fewer operations and less time. Both compute all scores, so that half of the "
        "operations is the most that can be saved."
    )
    criteria = (
        Exponent("time: soft", low=0.8, min_x=4096),
        Ratio("operations: hard", "operations: soft", high=1.0),
        Ratio("longest time: hard", "longest time: soft", high=1.0),
    )
    figure = (
        Panel(
            "Operations of one query, d = 256", "multiply-adds", tuple(f"multiply-adds: {kind}" for kind in KINDS),
            x_label="length n", log_x=True, log_y=True,
        ),
        Panel(
            "Time of one query, d = 256", "seconds", tuple(f"time: {kind}" for kind in KINDS),
            x_label="length n", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "A fused kernel for soft attention can be faster than separate operations for hard attention. If the part is "
        "chosen without scores of all others, as in a glimpse of an image, hard attention does not depend on n. A "
        "first measurement on a busy machine, with three seeds, did not decide about the time: 0.64 [0.41, 1.01]."
    )

    seeds = 10  # the load of the machine varies

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        calls: Calls = {}
        counts: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
        hard = Hard().eval().to(device)
        with torch.no_grad(), threads(1):
            for n in LENGTHS:
                query, key, value = (torch.randn(1, 1, size, DIM, device=device) for size in (1, n, n))
                calls["soft", n] = partial(attend, query, key, value)
                calls["hard", n] = partial(attend, query, key, value, align=hard, backend="gather")
                counts["soft"][n] = multiply_adds(partial(attend, query, key, value, backend="reference"))
                counts["hard"][n] = multiply_adds(calls["hard", n])
            times = seconds(calls, device, rounds=20)
        series = {f"multiply-adds: {kind}": counts[kind] for kind in KINDS}
        series |= {f"time: {kind}": {n: times[kind, n] for n in LENGTHS} for kind in KINDS}
        values = {f"operations: {kind}": counts[kind][LONG] for kind in KINDS}
        return Sample(values | {f"longest time: {kind}": times[kind, LONG] for kind in KINDS}, series)

"""Schedules of scheduled sampling."""

import math
from typing import Literal

from pydantic import model_validator

from qkv.config import Config, PositiveFloat, Probability, require


class ScheduledSampling(Config):
    """Scheduled sampling (Bengio et al. 2015): the probability e_i of feeding the given token falls in each epoch i.

    linear             e_i = max(minimum, k - slope * i)
    exponential        e_i = max(minimum, k^i)
    inverse_sigmoid    e_i = max(minimum, k / (k + exp(i / k)))
    """

    schedule: Literal["linear", "exponential", "inverse_sigmoid"] = "linear"  # of the probability
    k: PositiveFloat | None = None  # None: 1, 0.9 and 5 for the three schedules
    slope: PositiveFloat = 0.05  # of the linear schedule
    minimum: Probability = 0.0  # of e_i
    sample: bool = False  # feed a token sampled from the model's distribution instead of the most likely one

    @model_validator(mode="after")
    def _check(self) -> "ScheduledSampling":
        if self.k is not None:
            least, most = {"linear": (0, 1), "exponential": (0, 1), "inverse_sigmoid": (1, math.inf)}[self.schedule]
            require(least <= self.k <= most, f"k of the schedule {self.schedule} must be between {least} and {most}")
        return self

    def probability(self, epoch: int) -> float:
        """Return 1 - e_i, the probability of feeding the model's own token."""
        k = self.k or {"linear": 1.0, "exponential": 0.9, "inverse_sigmoid": 5.0}[self.schedule]
        given = {
            "linear": lambda: k - self.slope * epoch,
            "exponential": lambda: k**epoch,
            "inverse_sigmoid": lambda: k / (k + math.exp(min(epoch / k, 700.0))),
        }[self.schedule]()
        return 1.0 - max(self.minimum, given)

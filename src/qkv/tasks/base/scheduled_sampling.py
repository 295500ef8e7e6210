"""Schedules of scheduled sampling."""

import math
from typing import Literal

from pydantic import model_validator

from qkv.config import Config, PositiveFloat, Probability, require


class ScheduledSampling(Config):
    """Scheduled sampling (Bengio et al. 2015): the probability e_i of the reference token falls during training.

    i is the percentage of the training that is over, from 0 to 100.

    linear             e_i = max(minimum, k - slope * i)
    exponential        e_i = max(minimum, k^i)
    inverse_sigmoid    e_i = max(minimum, k / (k + exp(i / k)))
    """

    schedule: Literal["linear", "exponential", "inverse_sigmoid"] = "linear"  # of the probability
    k: PositiveFloat | None = None  # None: 1, 0.99 and 20 for the three schedules
    slope: PositiveFloat = 0.005  # of the linear schedule
    minimum: Probability = 0.0  # of e_i
    sample: bool = False  # feed a token sampled from the model's distribution instead of the most likely one

    @model_validator(mode="after")
    def _check(self) -> "ScheduledSampling":
        if self.k is not None:
            least, most = {"linear": (0, 1), "exponential": (0, 1), "inverse_sigmoid": (1, math.inf)}[self.schedule]
            require(least <= self.k <= most, f"k of the schedule {self.schedule} must be between {least} and {most}")
        return self

    def probability(self, done: float) -> float:
        """Return 1 - e_i, the probability of feeding the model's own token, after a fraction of the training."""
        k, i = self.k or {"linear": 1.0, "exponential": 0.99, "inverse_sigmoid": 20.0}[self.schedule], 100 * done
        if self.schedule == "linear":
            e_i = k - self.slope * i
        elif self.schedule == "exponential":
            e_i = k**i
        else:
            e_i = k / (k + math.exp(i / k))
        return 1.0 - max(self.minimum, e_i)

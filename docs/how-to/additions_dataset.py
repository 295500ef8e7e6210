import random
from typing import Annotated

from pydantic import Field

import qkv
from qkv.datasets.dataset import PairConfig, PairDataset
from qkv.datasets.examples.pair import Pair


@qkv.register("dataset", "additions")
class Additions(PairConfig):
    """Sums of two numbers: "12+7" to "19"; no problem occurs twice."""

    digits: Annotated[int, Field(ge=3, le=9)] = 3  # maximum number of digits of a summand

    def read(self):
        sizes = {"train": self.size or 20_000, "valid": 500, "test": 500}
        problems = iter(random.Random(0).sample(range(100**self.digits), sum(sizes.values())))
        return PairDataset({split: [self.pair(next(problems)) for _ in range(size)] for split, size in sizes.items()})

    def pair(self, problem):
        a, b = divmod(problem, 10**self.digits)
        return Pair(f"{a}+{b}", str(a + b))

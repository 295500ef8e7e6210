import torch
from torch import nn

import qkv
from qkv.attention import Position


@qkv.register("position", "log_distance")
class LogDistance(nn.Module, Position):
    """score(i, j) += b[head, bucket(j - i)], with buckets whose width doubles with the distance.

    A learned bias per head and bucket, as in T5 (Raffel et al. 2020).
    """

    adds_bias = True

    def __init__(self, heads, buckets):
        super().__init__()
        self.buckets = buckets
        self.weight = nn.Parameter(torch.zeros(heads, 2 * buckets))  # b: distances <= 0, then distances > 0

    @classmethod
    def from_sizes(cls, sizes, *, buckets: int = 8):  # number of buckets in each direction
        return cls(sizes.heads, buckets)

    def bias(self, query, shape):
        def at(index):
            distance = index.key - index.query_position  # j - i
            bucket = (distance.abs() + 1).log2().long().clamp(max=self.buckets - 1)
            return self.weight[index.head, bucket + self.buckets * (distance > 0)].to(query.dtype)

        return at

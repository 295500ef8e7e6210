import qkv
from qkv.attention import Align


@qkv.register("align", "top_k")
class TopK(Align):
    """Softmax over the k highest scores of each query; all other keys get weight 0."""

    def __init__(self, k: int = 4):  # keys that each query attends to
        self.k = k

    def compute_weights(self, inputs):
        scores = inputs.scores  # [batch, heads, query, key]
        highest = scores.topk(min(self.k, scores.shape[-1]), dim=-1).values
        return scores.masked_fill(scores < highest[..., -1:], float("-inf")).softmax(dim=-1)

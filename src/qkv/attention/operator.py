"""The one attention operator, as a function and as a module that holds its terms."""

from torch import nn

from qkv.attention.align import Align, Softmax
from qkv.attention.backends import choose
from qkv.attention.mask import Mask
from qkv.attention.position import Position
from qkv.attention.score import Keys, ScaledDot, Score
from qkv.attention.spec import Attended, Request
from qkv.types import Float, Tensor

SCALED_DOT = ScaledDot()
SOFTMAX = Softmax()


def attend(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch heads key key_dim"] | Keys,
    value: Float[Tensor, "batch heads key value_dim"],
    *,
    score: Score = SCALED_DOT,
    position: Position | None = None,
    mask: Mask | None = None,
    align: Align = SOFTMAX,
    dropout: float = 0.0,
    backend: str = "auto",
    need_weights: bool = False,
) -> Attended:
    """Read from the values, by how well each query fits each key.

    scores = mask(position(score(query, key))),   weights = align(scores),   output = weights @ value

    `dropout` acts on the weights and is applied whenever it is positive; the weights returned are those before it.
    A query whose every key is masked reads zeros. What stands behind a mask must still be finite: it counts zero times.
    `backend` is "auto" or a name, which raises `Unsupported` where
    that backend cannot serve the request.
    """
    request = Request(query, key, value, score, position, mask, align, dropout, need_weights)
    request.check()
    return choose(request, backend).run(request)


class Attend(nn.Module):
    """The operator with its terms: what a model calls, and what `watch` listens to."""

    def __init__(
        self,
        score: Score | None = None,
        align: Align | None = None,
        position: Position | None = None,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.score = score or ScaledDot()
        self.align = align or Softmax()
        self.position = position
        self.dropout = dropout
        self.backend = backend

    def forward(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch heads key key_dim"] | Keys,
        value: Float[Tensor, "batch heads key value_dim"],
        mask: Mask | None = None,
    ) -> Attended:
        return attend(
            query,
            key,
            value,
            score=self.score,
            position=self.position,
            mask=mask,
            align=self.align,
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend,
        )

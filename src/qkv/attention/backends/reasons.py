"""What several backends say when they cannot serve a request."""

from qkv.attention.score import DotProduct
from qkv.attention.spec import Request


def not_a_dot_product(request: Request) -> str | None:
    if isinstance(request.score, DotProduct):
        return None
    return f"the score {type(request.score).__name__} is not a dot product"


def not_a_softmax(request: Request) -> str | None:
    if request.align.as_softmax() is not None:
        return None
    return f"the alignment {type(request.align).__name__} is not a softmax"


def needs_the_weights(request: Request) -> str | None:
    if request.position is None or not request.position.reads:
        return None
    return f"the position {type(request.position).__name__} adds to what is read, which needs the weights"


def needs_dropout(request: Request) -> str | None:
    return "it has no dropout" if request.dropout > 0 else None


def is_empty(request: Request) -> str | None:
    return "the batch is empty, or there are no queries or keys" if 0 in request.extent[:4] else None

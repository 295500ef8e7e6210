"""Reasons for not supporting a request that several backends share."""

from qkv.attention.score import DotProduct
from qkv.attention.spec import AttentionRequest


def not_a_dot_product(request: AttentionRequest) -> str | None:
    if isinstance(request.score, DotProduct):
        return None
    return f"the score {type(request.score).__name__} is not a dot product"


def not_a_softmax(request: AttentionRequest) -> str | None:
    if request.align.as_softmax() is not None:
        return None
    return f"the alignment {type(request.align).__name__} is not a softmax"


def selects_several_keys(request: AttentionRequest) -> str | None:
    if request.align.selects_one_key():
        return None
    return f"the alignment {type(request.align).__name__} does not select one key per query without a gradient"


def needs_weights(request: AttentionRequest) -> str | None:
    if request.position is None or not request.position.adds_to_output:
        return None
    return f"the position {type(request.position).__name__} adds to the output, which needs the weights"


def needs_dropout(request: AttentionRequest) -> str | None:
    return "dropout is not supported" if request.dropout > 0 else None


def is_empty(request: AttentionRequest) -> str | None:
    return "the batch is empty, or there are no queries or keys" if 0 in request.shape[:4] else None

"""Cross-entropy of the next token, summed over the tokens that count."""

from torch.nn import functional as F

from qkv.types import Float, Int, Tensor


def token_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"],
    targets: Int[Tensor, "batch length"],
    ignore: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """-sum log p(target), in nats, over all targets but `ignore`."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        targets.flatten(),
        ignore_index=ignore,
        label_smoothing=label_smoothing,
        reduction="sum",
    )

"""Embedding: texts in, a vector for each out, near to those of texts that mean the same."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from qkv.config import nearest
from qkv.errors import InputError
from qkv.models.bert import Bert
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.pieces import IGNORE, Piece, in_batches
from qkv.tasks.reader import BATCH_TOKENS, Reader, require_text
from qkv.types import Float, Int, Tensor


class Embedder(Reader):
    """A text encoder, with any head or none: `Embedder("folders/all-MiniLM-L6-v2")(["A dog.", "A cat."])`.

    It reads a text to the model's max_length tokens, and no further.
    """

    @torch.no_grad()  # and not inference_mode, whose tensors nothing could be learned from
    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str = "mean",
        normalise: bool = True,
        batch_tokens: int = BATCH_TOKENS,
    ) -> Float[Tensor, "texts dim"]:
        """A row for each text, of length 1 if `normalise`: products of rows are then cosines.

        `pooling` makes one vector of the states of all tokens: "mean" of them (Reimers and Gurevych 2019; those at the
        edges count too), "cls" is the first one's, and "pooler" what BERT's pooler makes of that.
        """
        texts = [texts] if isinstance(texts, str) else texts
        require_text(texts)
        self.check_pooling(pooling)
        splitter = self.splitter.anew()
        pieces = [Piece(splitter.between(ids[: self.room]), [IGNORE]) for ids in splitter.split(texts)]
        found = torch.zeros(len(texts), self.dim)
        for rows, batch in in_batches(pieces, splitter.at_once(batch_tokens), splitter.pad):
            here = batch.to(self.model.device)
            hidden = self.model(splitter.read(here.tokens_read), lengths=here.lengths)
            found[rows] = POOLINGS[pooling](self.model, hidden, here.lengths).float().cpu()
        return F.normalize(found, dim=-1) if normalise else found

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return self.model.width

    def check_pooling(self, pooling: str) -> None:
        """Raise where there is no such pooling, or the model has none."""
        if pooling not in POOLINGS:
            raise InputError(f"pooling {pooling!r} is not known{nearest(pooling, POOLINGS)}")
        if pooling == "pooler" and (not isinstance(self.model, Bert) or self.model.pooler is None):
            raise InputError(f"{self.name}: has no pooler: choose pooling 'mean' or 'cls'")


def _mean(
    model: TextEncoder, hidden: Float[Tensor, "batch length dim"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch dim"]:
    inside = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    return (hidden.float() * inside[:, :, None]).sum(dim=1) / lengths[:, None]


# What makes one vector of the states of all tokens, [batch, length, dim], by the lengths of the rows.
POOLINGS: dict[str, Callable[..., Float[Tensor, "batch dim"]]] = {
    "mean": _mean,
    "cls": lambda model, hidden, lengths: hidden[:, 0],
    "pooler": lambda model, hidden, lengths: model.pooled(hidden),
}

"""Text embedding: one vector per text, close for texts of similar meaning."""

from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.models.bert import Bert
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.classifier import encode_texts
from qkv.pipelines.inputs.text_inputs import inference_batch_size, inference_batches
from qkv.pipelines.pipeline import TextPipeline, input_list, require_text
from qkv.registry import names_keywords, nearest
from qkv.types import Float, Int, Tensor


class Embedder(TextPipeline):
    """A text encoder with any head or none: `Embedder("folders/all-MiniLM-L6-v2")(["A dog.", "A cat."])`.

    Texts are truncated to the model's max_length tokens, with a warning.
    """

    task_description: ClassVar = "text embedding"

    @names_keywords
    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        pooling: str = "mean",
        normalize: bool = True,
        batch_size: int | None = None,
    ) -> Float[Tensor, "*texts dim"]:
        """Embed one text as a vector [dim], or several as a matrix [texts, dim].

        Args:
            texts: A text, or several.
            pooling: How to reduce the hidden states to one vector: their "mean" (Reimers and Gurevych 2019; special
                tokens included), the first one ("cls"), or the output of BERT's "pooler".
            normalize: Scale the vectors to unit length, so that dot products are cosine similarities.
            batch_size: Number of texts processed at a time; by default as many as fit in memory.
        """
        if isinstance(texts, str):
            return self([texts], pooling=pooling, normalize=normalize, batch_size=batch_size)[0]
        texts = input_list(texts, (str,), "texts")
        require_text(texts)
        self.check_pooling(pooling)
        encoder = self.encoder.fresh_copy()
        examples, truncated = encode_texts(encoder, texts, self.model.config.max_length)
        self.warn_truncated(truncated)
        vectors = torch.zeros(len(texts), self.dim)
        max_batch = encoder.max_batch(inference_batch_size(batch_size))
        with torch.no_grad():  # not inference_mode, so that the vectors can be used in training
            for rows, batch in inference_batches(examples, max_batch, encoder, self.model.config.max_length):
                batch = batch.to(self.model.device)
                hidden = self.model(encoder.lookup(batch.token_ids), lengths=batch.lengths)
                vectors[rows] = POOLINGS[pooling](self.model, hidden, batch.lengths).float().cpu()
        return F.normalize(vectors, dim=-1) if normalize else vectors

    @property
    def dim(self) -> int:
        """Embedding dimension."""
        return self.model.width

    def check_pooling(self, pooling: str) -> None:
        """Raise if the pooling is unknown or the model does not have it."""
        if pooling not in POOLINGS:
            raise InputError(f"pooling {pooling!r} is not known{nearest(pooling, POOLINGS)}")
        if pooling == "pooler" and (not isinstance(self.model, Bert) or self.model.pooler is None):
            raise InputError(f"{self.name}: has no pooler: choose pooling 'mean' or 'cls'")


def _mean(
    model: TextEncoder, hidden: Float[Tensor, "batch length dim"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch dim"]:
    inside = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    return (hidden.float() * inside[:, :, None]).sum(dim=1) / lengths[:, None]


# Reduce hidden states [batch, length, dim] to [batch, dim], given the lengths of the rows.
POOLINGS: dict[str, Callable[..., Float[Tensor, "batch dim"]]] = {
    "mean": _mean,
    "cls": lambda model, hidden, lengths: hidden[:, 0],
    "pooler": lambda model, hidden, lengths: torch.cat([model.pooled(text) for text in hidden.split(1)]),
}

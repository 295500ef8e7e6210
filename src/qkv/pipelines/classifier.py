"""Text classification: the label of a text, with the probability of each label."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

import torch

from qkv.config import require
from qkv.datasets.batching import BatchSize
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.inputs.text_inputs import IGNORE, AnyExampleEncoder, Example, inference_batch_size, inference_batches
from qkv.pipelines.pipeline import TextPipeline, one_or_many, require_text
from qkv.runtime.notebook import Drawable, quoted
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True, repr=False)
class Classification(Drawable):
    """An input with its predicted label."""

    text: str  # or the path of an image
    label: str
    probabilities: dict[str, float]  # of the labels, or of the `top_k` best, most probable first

    @classmethod
    def from_probabilities(
        cls, text: str, labels: Sequence[str], probabilities: Sequence[float], top_k: int | None = None
    ) -> "Classification":
        require(top_k is None or top_k >= 1, f"top_k must be at least 1, not {top_k}")
        ranked = sorted(zip(labels, probabilities, strict=True), key=lambda pair: -pair[1])
        return cls(text, ranked[0][0], dict(ranked[:top_k]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({quoted(self.label)}, score {self.score:.4f}, input {quoted(self.text)})"

    def table_row(self) -> tuple[str, str, str]:
        return self.text, self.label, f"{self.score:.1%}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, as `qkv classify --json` prints them."""
        probabilities = {label: round(value, 6) for label, value in self.probabilities.items()}
        return {"text": self.text, "label": self.label, "score": round(self.score, 6), "probabilities": probabilities}

    @property
    def score(self) -> float:
        """Probability of the predicted label."""
        return self.probabilities[self.label]


class Classifier(TextPipeline):
    """A text encoder with a classification head: `Classifier("runs/polarity-bert-0")("A fine film.").label`.

    Texts are truncated to the model's max_length tokens, with a warning.
    """

    task_description: ClassVar = "text classification"
    heads: ClassVar = ("classifier",)
    example_input: ClassVar = "A warm, funny and moving film."

    @one_or_many
    def __call__(
        self, texts: Sequence[str], *, top_k: int | None = None, batch_size: int | None = None
    ) -> list[Classification]:
        """Return the label of one text or several, with the probability of each label.

            classifier = qkv.Classifier("runs/polarity-bert-0")
            classifier(["A fine film.", "A bore."], batch_size=32)[1].probabilities

        Args:
            texts: A text, or several.
            top_k: Number of labels in `probabilities`, the most probable ones; by default all.
            batch_size: Number of texts processed at a time; by default as many as fit in memory.

        Returns:
            One `Classification` for each text, with `label`, `score` and `probabilities`.
        """
        require_text(texts)
        encoder = self.encoder.fresh_copy()
        examples, truncated = encode_texts(encoder, texts, self.model.config.max_length)
        self.warn_truncated(truncated)
        log_p = encoded_log_probabilities(self.model, encoder, examples, inference_batch_size(batch_size))
        return [
            Classification.from_probabilities(text, self.model.labels, row, top_k)
            for text, row in zip(texts, log_p.exp().tolist(), strict=True)
        ]


def encode_texts(
    encoder: AnyExampleEncoder, texts: Sequence[str], max_length: int, targets: Iterable[int] = repeat(IGNORE)
) -> tuple[list[Example], list[int]]:
    """Encode texts for a model with this `max_length`; also return the 1-based numbers of those that are truncated."""
    max_tokens = encoder.max_tokens(max_length)
    encoded = encoder.encode(texts)
    examples = [
        Example(encoder.add_special_tokens(ids[:max_tokens]), target)
        for ids, target in zip(encoded, targets, strict=False)
    ]
    return examples, [number for number, ids in enumerate(encoded, start=1) if len(ids) > max_tokens]


def label_log_probabilities(
    model: TextEncoder, encoder: AnyExampleEncoder, texts: Sequence[str], batch_size: BatchSize
) -> Float[Tensor, "texts labels"]:
    """Log-probability of each label for each text."""
    encoder = encoder.fresh_copy()
    examples, _ = encode_texts(encoder, texts, model.config.max_length)
    return encoded_log_probabilities(model, encoder, examples, batch_size)


@torch.inference_mode()
def encoded_log_probabilities(
    model: TextEncoder, encoder: AnyExampleEncoder, examples: Sequence[Example], batch_size: BatchSize
) -> Float[Tensor, "texts labels"]:
    """Log-probability of each label for each text, given the texts as encoded by `encoder`."""
    log_p = torch.zeros(len(examples), model.config.labels)
    for rows, batch in inference_batches(examples, encoder.max_batch(batch_size), encoder, model.config.max_length):
        batch = batch.to(model.device)
        logits = _predict(model, encoder.lookup(batch.token_ids), batch.lengths)
        log_p[rows] = logits.float().log_softmax(dim=-1).cpu()
    return log_p


def _predict(
    model: TextEncoder, tokens: Int[Tensor, "batch length *characters"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch labels"]:
    """Return the logits of a padded batch, as they are for each text alone if the model can do that."""
    logits: Tensor
    if not model.batch_invariant or tokens.device.type != "cpu":
        logits = model.predict(tokens, lengths)
    else:  # the head has one row per text, and PyTorch rounds products of a few rows differently for each number
        logits = torch.cat([model.logits(text) for text in model(tokens, lengths=lengths).split(1)])
    return logits

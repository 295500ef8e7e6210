"""Text classification: the label of a text, with the probability of each label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from qkv.datasets.batching import BatchSize
from qkv.datasets.pair import Pair
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.text_inputs import IGNORE, AnyExampleEncoder, Example, iter_batches
from qkv.pipelines.text_pipeline import BATCH_TOKENS, TextPipeline, require_text
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Classified:
    """A text with its predicted label."""

    text: str
    label: str
    probabilities: dict[str, float]  # of all labels, most probable first


class Classifier(TextPipeline):
    """A text encoder with a classification head: `Classifier("runs/polarity-bert-0")("A fine film.").label`.

    Texts are truncated to the model's max_length tokens.
    """

    heads: ClassVar = ("classifier",)

    def __call__(self, text: str) -> Classified:
        """Classify one text."""
        return self.classify([text])[0]

    def classify(self, texts: Sequence[str], *, batch_tokens: int = BATCH_TOKENS) -> list[Classified]:
        """Classify each text."""
        require_text(texts)
        pairs = [Pair(text, "") for text in texts]
        probabilities = label_log_probabilities(self.model, self.encoder, pairs, BatchSize(batch_tokens)).exp()
        return [self._classified(text, row) for text, row in zip(texts, probabilities.tolist(), strict=True)]

    def _classified(self, text: str, probabilities: Sequence[float]) -> Classified:
        ranked = sorted(zip(self.labels, probabilities, strict=True), key=lambda pair: -pair[1])
        return Classified(text, ranked[0][0], dict(ranked))

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names; LABEL_0, LABEL_1, ... (as in transformers) where none are set."""
        return self.model.labels


@dataclass(frozen=True)
class EncodedTexts:
    """Texts encoded for a model."""

    examples: list[Example]
    too_long: int  # number of truncated texts


def encode_texts(
    encoder: AnyExampleEncoder, pairs: Sequence[Pair], labels: Mapping[str, int], max_length: int
) -> EncodedTexts:
    """Encode labelled texts, truncated to the model's maximum length; unknown labels are ignored."""
    max_tokens = encoder.max_tokens(max_length)
    encoded = encoder.encode([pair.source for pair in pairs])
    examples = [
        Example(encoder.add_special_tokens(ids[:max_tokens]), labels.get(pair.target, IGNORE))
        for pair, ids in zip(pairs, encoded, strict=True)
    ]
    return EncodedTexts(examples, sum(len(ids) > max_tokens for ids in encoded))


@torch.inference_mode()
def label_log_probabilities(
    model: TextEncoder, encoder: AnyExampleEncoder, pairs: Sequence[Pair], batch_size: BatchSize
) -> Float[Tensor, "texts labels"]:
    """Log-probability of each label for each text."""
    encoder = encoder.fresh_copy()
    texts = encode_texts(encoder, pairs, {}, model.config.max_length)
    log_p = torch.zeros(len(pairs), model.config.labels)
    for rows, batch in iter_batches(texts.examples, encoder.max_batch(batch_size), encoder.pad):
        batch = batch.to(model.device)
        log_p[rows] = model.predict(encoder.lookup(batch.token_ids), batch.lengths).float().log_softmax(dim=-1).cpu()
    return log_p

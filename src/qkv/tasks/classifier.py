"""Text classification: the label of a text, with the probability of each label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.data.pair import Pair
from qkv.tasks.classification import label_log_probabilities
from qkv.tasks.text_pipeline import BATCH_TOKENS, TextPipeline, require_text


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
        probabilities = label_log_probabilities(self.model, self.encoder, pairs, batch_tokens).exp()
        return [self._classified(text, row) for text, row in zip(texts, probabilities.tolist(), strict=True)]

    def _classified(self, text: str, probabilities: Sequence[float]) -> Classified:
        ranked = sorted(zip(self.labels, probabilities, strict=True), key=lambda pair: -pair[1])
        return Classified(text, ranked[0][0], dict(ranked))

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names; LABEL_0, LABEL_1, ... (as in transformers) where none are set."""
        return self.model.labels

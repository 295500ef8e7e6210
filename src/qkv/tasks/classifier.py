"""Classification: a text in, a label out, with the probability of each label there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.data.pair import Pair
from qkv.tasks.classification import label_log_probabilities
from qkv.tasks.reader import BATCH_TOKENS, Reader, require_text


@dataclass(frozen=True)
class Classified:
    """A text, and what a model takes it for."""

    text: str
    label: str
    probabilities: dict[str, float]  # of all labels, the most probable first


class Classifier(Reader):
    """A model with a head for labels: `Classifier("runs/polarity-bert-0")("A fine film.").label`.

    It reads a text to the model's max_length tokens, and no further.
    """

    heads: ClassVar = ("classifier",)

    def __call__(self, text: str) -> Classified:
        """The label of one text."""
        return self.classify([text])[0]

    def classify(self, texts: Sequence[str], *, batch_tokens: int = BATCH_TOKENS) -> list[Classified]:
        """The label of each text."""
        require_text(texts)
        pairs = [Pair(text, "") for text in texts]
        found = label_log_probabilities(self.model, self.splitter, pairs, batch_tokens).exp()
        return [self._classified(text, row) for text, row in zip(texts, found.tolist(), strict=True)]

    def _classified(self, text: str, probabilities: Sequence[float]) -> Classified:
        ranked = sorted(zip(self.labels, probabilities, strict=True), key=lambda one: -one[1])
        return Classified(text, ranked[0][0], dict(ranked))

    @property
    def labels(self) -> tuple[str, ...]:
        """What the labels are called; where nobody named them, as transformers calls them."""
        return self.model.labels

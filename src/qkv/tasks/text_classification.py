"""Text classification task."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.classifier import encode_texts, label_log_probabilities
from qkv.pipelines.inputs.text_inputs import IGNORE, Example
from qkv.registry import register
from qkv.runtime.text import printable
from qkv.tasks.base.evaluation import Evaluation, label_details, require_known_label
from qkv.tasks.base.task import Sample
from qkv.tasks.base.text_encoder_task import TextEncoderTask
from qkv.types import Float, Tensor

MAX_LABEL = 40  # characters of a label in a message


@register("task", "classify")
class TextClassificationTask(TextEncoderTask):
    """The loss is the cross-entropy of the labels."""

    title = "classification"
    cli_command = "classify"
    unit = "texts"
    datasets = (LabeledTextDataset,)
    model_options: ClassVar = {"head": "classifier"}
    evaluation_unit = "texts"

    @classmethod
    def label_names(cls, examples: Sequence[Pair]) -> set[str]:
        names = {pair.target for pair in examples}
        if len(names) < 2:
            (label,) = names
            name = printable(repr(label), MAX_LABEL)
            raise InputError(f"all training texts have one label, {name}: at least two labels are required")
        return names

    def setup(self, data: LabeledTextDataset) -> None:
        super().setup(data)
        for split in data.splits:
            self.notes += self.notes_on(data, split)

    def encode(self, examples: Sequence[Pair]) -> list[Example]:
        targets = [self.labels.get(pair.target, IGNORE) for pair in examples]
        encoded, truncated = encode_texts(self.encoder, [pair.source for pair in examples], self.max_length, targets)
        if truncated:
            unit = self.encoder.unit
            self.notes += (
                f"{len(truncated)} training text(s) are truncated to model.max_length = {self.max_length} {unit}",
            )
        return encoded

    def describe(self) -> str:
        return f"{len(self.train):,} texts, {len(self.labels)} labels"

    def score_examples(self, model: TextEncoder, examples: Sequence[Pair]) -> dict[str, float]:
        return label_scores(self._log_probabilities(model, examples), examples, self.labels)

    def evaluate(self, model: TextEncoder, data: LabeledTextDataset, split: str) -> Evaluation:
        """All metrics on a split, the scores of each label, and the calibration."""
        pairs = data.splits[split]
        log_p = self._log_probabilities(model, pairs)
        targets, texts = [pair.target for pair in pairs], [pair.source for pair in pairs]
        details = label_details(log_p.exp(), model.labels, targets, texts)
        return Evaluation(len(pairs), self.evaluation_unit, label_scores(log_p, pairs, self.labels), **details)

    def _log_probabilities(self, model: TextEncoder, pairs: Sequence[Pair]) -> Float[Tensor, "texts labels"]:
        texts = [pair.source for pair in pairs]
        return label_log_probabilities(model, self.encoder, texts, self.train_config.batching)

    def samples(self, model: TextEncoder, count: int) -> list[Sample]:
        pairs, names = self.valid[:count], self.model_config.label_names
        labels = [names[number] for number in self._log_probabilities(model, pairs).argmax(dim=-1).tolist()]
        return [Sample(pair.source, label, pair.target) for pair, label in zip(pairs, labels, strict=True)]

    def check_files(self, data: LabeledTextDataset, split: str) -> None:
        require_known_label([pair.target for pair in data.splits[split]], self.labels, split)

    def notes_on(self, data: LabeledTextDataset, split: str) -> tuple[str, ...]:
        """Note labels missing from the training data: ignored in the loss, counted as errors in the accuracy."""
        unseen = sorted({pair.target for pair in data.splits[split]} - self.labels.keys())
        labels_shown = ", ".join(printable(label, MAX_LABEL) for label in unseen[:5])
        return (f"labels in {split} that no training text has: {labels_shown}",) if unseen else ()


def label_scores(
    log_p: Float[Tensor, "texts labels"], pairs: Sequence[Pair], labels: Mapping[str, int]
) -> dict[str, float]:
    """Accuracy and mean -log p of the true label; a label unknown to the model counts as an error."""
    targets = torch.tensor([labels.get(pair.target, IGNORE) for pair in pairs])
    known = targets != IGNORE
    loss = -log_p[known].gather(1, targets[known, None]).mean()
    return {"loss": float(loss), "accuracy": float((log_p.argmax(dim=-1) == targets).double().mean())}

"""Explainable predictions of text classifiers: tokens of a text, words and sentences of a document."""

import torch

from qkv.attention.layers import attention_layers
from qkv.errors import InputError
from qkv.interpret.document_probe import document_rows
from qkv.interpret.explainable import NO_UNIT, Explainable, Reweighted
from qkv.models.han import HAN, PADDING
from qkv.nn.pooling import AttentionPooling
from qkv.pipelines.classifier import Classifier
from qkv.pipelines.inputs.text_inputs import SentenceExampleEncoder, WordExampleEncoder
from qkv.pipelines.output import Candidate
from qkv.registry import nearest
from qkv.tokenizers.words import split_words
from qkv.types import Bool, Float, Int, Tensor


class Classified(Explainable):
    """A prediction of a label."""

    def explain_label(self, target: str | None) -> None:
        """Explain the predicted label, or another one."""
        labels = self.model.labels
        self.explain_outputs("", [""], [0])
        with torch.no_grad():
            probabilities = self.forward(self.everything())[0, 0].float().softmax(dim=-1).tolist()
        predicted = probabilities.index(max(probabilities))
        self.labels = tuple(sorted(map(Candidate, labels, probabilities), key=lambda label: -label.probability))
        if target is not None and target not in labels:
            raise InputError(f"unknown label {target!r}{nearest(target, labels)}")
        chosen = predicted if target is None else labels.index(target)
        self.explain_outputs(labels[predicted], [labels[chosen]], [chosen])

    def query_rows(self, output: int) -> list[int]:
        return [0]  # [CLS], or the only query of attention pooling


class TextClassification(Classified):
    """The label of a text; its units are the tokens, without special tokens such as [CLS]."""

    def __init__(self, classifier: Classifier, text: str, target: str | None = None) -> None:
        self.encoder = classifier.encoder.fresh_copy()
        (ids,) = self.encoder.encode([text])
        ids = ids[: classifier.max_tokens]
        self.ids, first = self.encoder.add_special_tokens(ids), self.encoder.first_position
        owner = torch.full((len(self.ids),), NO_UNIT)
        owner[first : first + len(ids)] = torch.arange(len(ids))
        pieces, begins = self._pieces(text, len(ids))
        super().__init__(classifier.model, pieces, owner)
        self.spaced = tuple(any(map(str.isspace, text[max(0, begin - 1) : begin + 1])) for begin in begins)
        self._find_layers()
        self.explain_label(target)

    def _pieces(self, text: str, count: int) -> tuple[tuple[str, ...], list[int]]:
        """Return the display text of the tokens, and the index of their first character."""
        if isinstance(self.encoder, WordExampleEncoder):
            words = [*split_words(text)][:count]
            return tuple(text[begin:end] for begin, end in words), [begin for begin, _ in words]
        (encoding,) = self.encoder.tokenizer.encode_with_offsets([text])
        if not encoding.pieces:
            return (text,), [0]
        return encoding.pieces[:count], [begin for begin, _ in encoding.offsets[:count]]

    def _find_layers(self) -> None:
        """Find the attention pooling or, for BERT, the self-attention layers, whose query is [CLS]."""
        if getattr(self.model.config, "rank", None) is not None:
            return  # Linformer: keys are projections of all tokens
        pooled = [module.attend for module in self.model.modules() if isinstance(module, AttentionPooling)]
        names = attention_layers(self.model)
        if pooled:
            self.layers = tuple(name for name, attend in names.items() if attend in pooled)
        else:
            self.self_layers, self.layers = tuple(names), tuple(reversed(names))

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants 1 labels"]:
        """Return the logits of the labels without the tokens that are not kept."""
        rows = self.kept_tokens(self.ids, keep)
        if not all(rows):  # an encoder without special tokens
            rows = [row or self.encoder.encode([""])[0] for row in rows]
        width, device = max(map(len, rows)), self.model.device
        ids = torch.tensor([[*row, *[self.encoder.pad] * (width - len(row))] for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        return self.model.predict(self.encoder.lookup(ids), lengths)[:, None]


class DocumentClassification(Classified):
    """The label of a document by a hierarchical attention network; its units are words or sentences."""

    model: HAN

    def __init__(self, classifier: Classifier, text: str, target: str | None = None, unit: str = "word") -> None:
        encoder = classifier.encoder.fresh_copy()
        assert isinstance(encoder, SentenceExampleEncoder)
        (numbers,) = encoder.encode([text])
        self.words: Int[Tensor, "sentences words"] = encoder.lookup(torch.tensor(numbers[: classifier.max_tokens]))
        self.unknown = classifier.tokenizer.special_tokens.unk or PADDING + 1
        self.unit = unit
        present = self.words != PADDING
        rows = [*document_rows(classifier.tokenizer, text, encoder.max_words)][: len(self.words)]
        if unit == "sentence":
            numbered = torch.arange(len(self.words))[:, None].expand_as(self.words)
            units = tuple("".join(row).strip() for row in rows)
        else:
            numbered = present.flatten().cumsum(0).view_as(self.words) - 1
            units = tuple(piece.strip() for row in rows for piece in row)
        super().__init__(classifier.model, units, torch.where(present, numbered, NO_UNIT).flatten())
        self.layers = ("sentences", "words") if self.model.config.pooling == "attention" else ()
        self.explain_label(target)

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants 1 labels"]:
        """Return the logits of the labels without the words or sentences that are not kept."""
        owner = self.owner.view_as(self.words)
        documents = []
        for kept in keep:
            inside = (owner != NO_UNIT) & kept[owner.clamp(min=0)]
            rows = [row[mask] for row, mask in zip(self.words, inside, strict=True) if bool(mask.any())]
            documents.append(rows or [torch.tensor([self.unknown])])
        words = torch.full(
            (len(keep), max(map(len, documents)), max(len(row) for d in documents for row in d)), PADDING
        )
        for number, rows in enumerate(documents):
            for position, row in enumerate(rows):
                words[number, position, : len(row)] = row
        lengths = torch.tensor([len(rows) for rows in documents], device=self.model.device)
        return self.model.predict(words.to(self.model.device), lengths)[:, None]

    def attention_scores(self, *, norms: bool, all_layers: bool) -> Float[Tensor, "1 units"]:
        """Return the weights of sentences, or those of words times the weight of their sentence."""
        records = self.record()
        sentences, words = (
            (record.norms([0])[:, 0] if norms else record.weights[:, :, 0].mean(dim=1)).float().cpu()
            for record in (records["sentences"], records["words"])
        )
        sentences, words = (part / part.sum(dim=-1, keepdim=True).clamp(min=1e-12) for part in (sentences, words))
        if self.unit == "sentence":
            return sentences
        return self.to_units((sentences[0, :, None] * words).flatten()[None])

    def reweighted(self, output: int) -> Reweighted:
        """Return the weights of the sentences, or of the words of all sentences."""
        layer = f"{self.unit}s"
        return Reweighted(layer, self.record()[layer].weights, 0)

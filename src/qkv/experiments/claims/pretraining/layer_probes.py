"""What a learned mix of the layers of a bidirectional language model is worth, against one of its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from qkv.datasets.corpora.text.sentence_polarity import SentencePolarity
from qkv.datasets.corpora.text.ud_english_ewt import UDEnglishEWT
from qkv.hub import load_as
from qkv.models.elmo import Elmo, ScalarMix
from qkv.pipelines.inputs.text_inputs import WordExampleEncoder
from qkv.tokenizers.words import split_words
from qkv.training.run import Run
from qkv.types import Float, Int, Tensor

BATCH, MAX_WORDS = 64, 60  # sentences; words of a sentence
STEPS, WEIGHT_DECAY = 100, 1e-3  # of a probe
LAYERS = {"learned mix": slice(None), "top layer": slice(-1, None), "word vectors": slice(1)}
Vectors = Float[Tensor, "rows layers features"]


@dataclass(frozen=True)
class LayerProbes:
    """Accuracy of linear classifiers of frozen vectors: the part of speech of a word, the polarity of a sentence.

    The vectors are a learned mix of all layers, the top layer, or the word vectors below the LSTM layers.
    """

    sentences: int  # to train each classifier
    tests: int  # of the validation splits

    def __call__(self, run: Run, device: str) -> Mapping[str, float]:
        model = load_as(Elmo, run.folder, device=device)
        scores: dict[str, float] = {}
        for task, splits in (("parts of speech", self._tags(model)), ("polarity", self._polarity(model))):
            for name, layers in LAYERS.items():
                (x, y), (test_x, test_y) = splits
                accuracy, weights = mix_probe(x[:, layers], y, test_x[:, layers], test_y)
                scores[f"{task} {name}"] = accuracy
                if len(weights) > 1:
                    scores |= {f"{task} weight {number}": weight for number, weight in enumerate(weights)}
        return scores

    def _tags(self, model: Elmo) -> list[tuple[Vectors, Int[Tensor, "rows"]]]:
        """Return the vectors of words and their parts of speech, to train and to test."""
        splits = UDEnglishEWT().load().splits
        tags = sorted({tag for sentence in splits["train"] for tag in sentence.tags})
        parts = []
        for split, count in (("train", self.sentences), ("valid", self.tests)):
            chosen = splits[split][:count]
            vectors = layer_vectors(model, [[word.lower() for word in sentence.words] for sentence in chosen])
            labels = [tags.index(tag) for sentence in chosen for tag in sentence.tags[:MAX_WORDS]]
            parts.append((torch.cat(vectors), torch.tensor(labels)))
        return parts

    def _polarity(self, model: Elmo) -> list[tuple[Vectors, Int[Tensor, "rows"]]]:
        """Return the mean vector of each sentence and whether it is positive, to train and to test."""
        splits = SentencePolarity().load().splits
        parts = []
        for split, count in (("train", self.sentences), ("valid", self.tests)):
            chosen = splits[split][:count]
            words = [[text[begin:end] for begin, end in split_words(text)] for text in (p.source for p in chosen)]
            vectors = torch.stack([rows.mean(dim=0) for rows in layer_vectors(model, words)])
            parts.append((vectors, torch.tensor([int(pair.target == "positive") for pair in chosen])))
        return parts


@torch.no_grad()
def layer_vectors(model: Elmo, sentences: Sequence[Sequence[str]]) -> list[Float[Tensor, "words layers features"]]:
    """Return the word vectors and the outputs of all LSTM layers for the first 60 words of each sentence."""
    encoder = WordExampleEncoder(model.config.max_characters)
    rows = [torch.tensor(encoder.table.add(words[:MAX_WORDS])) for words in sentences]
    vectors = []
    for batch in (rows[start : start + BATCH] for start in range(0, len(rows), BATCH)):
        lengths = torch.tensor([len(row) for row in batch], device=model.device)
        characters = encoder.lookup(pad_sequence(batch, batch_first=True).to(model.device))
        layers = model.representations(characters, lengths).float().cpu()
        vectors += [each[:, : len(row)].transpose(0, 1) for each, row in zip(layers, batch, strict=True)]
    return vectors


@torch.enable_grad()
def mix_probe(
    x: Vectors, y: Int[Tensor, "rows"], test_x: Float[Tensor, "tests layers features"], test_y: Int[Tensor, "tests"]
) -> tuple[float, list[float]]:
    """Fit a logistic regression to a learned mix of normalized layers; return its accuracy and the layer weights."""
    mean, std = x.mean(dim=0), x.std(dim=0) + 1e-6
    x, test_x = (x - mean) / std, (test_x - mean) / std
    mix, label = ScalarMix(x.shape[1]), nn.Linear(x.shape[2], int(y.max()) + 1)
    nn.init.zeros_(label.weight)
    nn.init.zeros_(label.bias)
    optimizer = torch.optim.LBFGS([mix.weights, *label.parameters()], max_iter=STEPS)  # the scale is that of `label`

    def logits(layers: Vectors) -> Float[Tensor, "rows labels"]:
        return label(mix(layers[:, :, None])[:, 0])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(x), y) + WEIGHT_DECAY * label.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    accuracy = (logits(test_x).argmax(dim=1) == test_y).double().mean()
    return float(accuracy), torch.softmax(mix.weights, dim=0).tolist()

"""Captioning as a task to learn: from pictures with captions."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch

from qkv.data.batching import IGNORE, stepped
from qkv.data.captions import Captions
from qkv.data.registry import DataConfig, Loaded
from qkv.data.tensor_batch import TensorBatch
from qkv.data.vocabulary import PAD, Vocabulary
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.metrics.captions import caption_bleu, exact_captions, inside
from qkv.models.captioner import MAX_STRIDE, Config, ShowAttendTell
from qkv.objectives.attention import alignment_loss
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.objectives.spread import spread_loss
from qkv.tasks.captioner import Captioner
from qkv.tasks.image_classification import scaled
from qkv.tasks.marks import Marks
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Shaped, Tensor


@dataclass(frozen=True)
class CaptionBatch(TensorBatch):
    """Some pictures with a caption each; `target_in` begins with <s>, `target_out` ends with </s> and IGNORE."""

    pictures: Shaped[Tensor, "batch channels height width"]  # bytes, or features
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    tokens: int  # how many target tokens count

    @property
    def images(self) -> Float[Tensor, "batch channels height width"]:
        """The pictures as a model reads them."""
        return scaled(self.pictures) if self.pictures.dtype == torch.uint8 else self.pictures


@dataclass(frozen=True)
class Example:
    """One caption, and the number of the picture that it is of."""

    picture: int
    tokens: list[int]


@dataclass
class CaptioningTask(ScoredTask):
    """Every caption once in an epoch, in an order that the seed decides; pictures may be moved a little."""

    title = "captioning"
    command = "caption"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "exact": Metric("exact", percent=True),
        "bleu": Metric("bleu"),
        "pointing": Metric("pointing", percent=True),
    }
    model = ShowAttendTell
    learns_from = "captions"
    from_data = ("vocabulary_size", "channels", "height", "width")
    capturable = True

    vocabulary: Vocabulary
    train: Captions
    examples: list[Example]
    valid: Captions
    settings: Settings
    longest: int  # tokens that a caption may have, its end counted
    marks: Marks  # that captions begin and end with
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.number = 0  # of the epoch

    @classmethod
    def learn_vocabulary(cls, data: Loaded, config: DataConfig, model: Any) -> Vocabulary:
        said = (text for texts in data.captions["train"].texts for text in texts)
        return Vocabulary.train(said, config.vocabulary, lowercase=config.lowercase)

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        cells = {"patches": table.get("patch", Config.patch), "given": 1}
        side = cells.get(str(table.get("encoder")), MAX_STRIDE)
        return {"vocabulary_size": 1, "channels": 3, "height": side, "width": side}

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: Vocabulary) -> dict[str, Any]:
        _, channels, height, width = data.captions["train"].pictures.shape
        return {"vocabulary_size": len(vocabulary), "channels": channels, "height": height, "width": width}

    @classmethod
    def prepare(cls, data: Loaded, vocabulary: Vocabulary, model: Any, train: Settings, seed: int) -> "CaptioningTask":
        """Encode the captions; those that are longer than the model allows are left out and noted."""
        pictures = data.captions["train"]
        notes = (*data.notes, *chain.from_iterable(captions.notes for captions in data.captions.values()))
        every = encoded(vocabulary, pictures)
        kept = [one for one in every if len(one.tokens) < model.max_length]
        if not kept:
            raise InputError(f"every caption is longer than model.max_length = {model.max_length} tokens")
        if train.best_by == "pointing" and not (data.captions["valid"].objects and model.attention != "none"):
            raise InputError(
                "train.best_by 'pointing' is for a model with attention and data that say where objects are: shapes"
            )
        if left_out := len(every) - len(kept):
            notes += (f"left out {left_out} caption(s) longer than {model.max_length - 1} tokens",)
        valid, marks = data.captions["valid"][: train.valid_size], Marks.of(vocabulary, model)
        return cls(vocabulary, pictures, kept, valid, train, model.max_length, marks, seed, notes)

    def describe(self) -> str:
        return f"{len(self.examples):,} captions of {len(self.train):,} pictures"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        order = list(range(len(self.examples)))
        random.Random(f"{self.seed} {number}").shuffle(order)
        return [order[begin : begin + self.size] for begin in range(0, len(order), self.size)]

    @property
    def size(self) -> int:
        """How many pictures a batch has."""
        return self.settings.batch_tokens

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> CaptionBatch:
        examples = [self.examples[row] for row in rows]
        width = min(stepped(max(len(one.tokens) for one in examples) + 1), self.longest) if filled else 0
        batch = self._batched(self.train, examples, self.size if filled else 0, width)
        if not self.settings.shift:
            return batch
        chance = torch.Generator().manual_seed(random.Random(f"{self.seed} {self.number} {rows[0]}").getrandbits(63))
        pictures = nudged(batch.pictures, self.settings.shift, chance)
        return CaptionBatch(pictures, batch.target_in, batch.target_out, batch.tokens)

    def loss(self, model: ShowAttendTell, batch: CaptionBatch) -> Float[Tensor, ""]:
        """The mean over the caption's tokens, in nats, what hard attention learns from, and what soft should spread."""
        logits, weights = model.forward_with_weights(batch.images, batch.target_in)
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.settings.label_smoothing, consume=True)
        if model.config.spread:
            loss = loss + model.config.spread * spread_loss(weights, batch.target_out != IGNORE)
        return loss if reward is None else loss + reward

    def validate(self, model: ShowAttendTell) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return list(data.captions)

    def examine(self, model: ShowAttendTell, data: Loaded, split: str) -> Examined:
        return Examined(len(data.captions[split]), "pictures", self._scores(model, data.captions[split]))

    @torch.inference_mode()
    def _scores(self, model: ShowAttendTell, captions: Captions) -> dict[str, float]:
        """The loss of all captions, what greedy search finds, and where the objects' own words were read."""
        total, tokens = 0.0, 0
        for part in self._parts(encoded(self.vocabulary, captions)):
            batch = self._batched(captions, part).to(model.device)
            logits = model(batch.images, batch.target_in)
            total += token_cross_entropy(logits, batch.target_out, IGNORE).item()
            tokens += batch.tokens
        captioner, texts = Captioner(model, self.vocabulary), []
        for part in self._parts([Example(number, []) for number in range(len(captions))]):
            images = self._batched(captions, part).to(model.device).images
            texts += [self.vocabulary.decode(best.tokens) for best in captioner.write(images)]
        references = [[self.vocabulary.normalize(text) for text in some] for some in captions.texts]
        scores = {
            "loss": total / tokens,
            "exact": exact_captions(texts, references),
            "bleu": caption_bleu(texts, references).value,
        }
        if captions.objects and model.alignment_layers:
            scores["pointing"] = self._pointing(model, captions)
        return scores

    def _pointing(self, model: ShowAttendTell, captions: Captions) -> float:
        """The share of the words that name an object for which the place that was read most lies inside its box.

        The captions are the true ones, so that every word has an object. Of a word of several tokens each counts.
        """
        size, grid = (model.config.height, model.config.width), model.config.grid
        first = Captions(captions.pictures, tuple(texts[:1] for texts in captions.texts), captions.objects)
        found: list[bool] = []
        for part in self._parts(encoded(self.vocabulary, first)):
            batch = self._batched(first, part).to(model.device)
            _, weights = model.forward_with_weights(batch.images, batch.target_in)
            for one, peaks in zip(part, weights.argmax(dim=-1).tolist(), strict=True):
                words = self._words(first.texts[one.picture][0])
                for named in first.objects[one.picture]:
                    read = [peak for peak, word in zip(peaks, words, strict=False) if word in named.words]
                    found += [inside(peak, grid, size, named.box) for peak in read]
        return sum(found) / len(found) if found else float("nan")

    def _words(self, text: str) -> list[int]:
        """The number of the word that each token of a caption belongs to; a space belongs to the word after it."""
        words, here = [], 0
        for piece in self.vocabulary.encode(text).pieces:
            here += len(piece)
            words.append(text[:here].count(" "))
        return words

    def _parts(self, examples: list[Example]) -> Iterator[list[Example]]:
        for begin in range(0, len(examples), self.size):
            yield examples[begin : begin + self.size]

    def _batched(self, captions: Captions, examples: list[Example], rows: int = 0, width: int = 0) -> CaptionBatch:
        """Examples as one batch, of so many rows and tokens at least; a row without a caption shows the first again."""
        missing = max(0, rows - len(examples))
        width = max(width, *(len(one.tokens) + 1 for one in examples))
        begun = [[self.marks.begin, *one.tokens] for one in examples] + [[]] * missing
        ended = [[*one.tokens, self.marks.end] for one in examples] + [[]] * missing
        numbers = [one.picture for one in examples] + [examples[0].picture] * missing
        return CaptionBatch(
            torch.from_numpy(captions.pictures[numbers]),
            torch.tensor([row + [PAD] * (width - len(row)) for row in begun]),
            torch.tensor([row + [IGNORE] * (width - len(row)) for row in ended]),
            sum(map(len, ended)),
        )


def encoded(vocabulary: Vocabulary, captions: Captions) -> list[Example]:
    """Every caption of every picture, as tokens."""
    said = [(picture, text) for picture, texts in enumerate(captions.texts) for text in texts]
    ids = vocabulary.encode_ids([text for _, text in said])
    return [Example(picture, tokens) for (picture, _), tokens in zip(said, ids, strict=True)]


def nudged(
    pictures: Shaped[Tensor, "batch channels height width"], most: int, chance: torch.Generator
) -> Shaped[Tensor, "batch channels height width"]:
    """Each picture by up to so many pixels up or down and left or right; what comes in is the edge once more."""
    count, _, height, width = pictures.shape
    down, right = torch.randint(-most, most + 1, (2, count, 1), generator=chance)
    rows = (down + torch.arange(height)).clamp(0, height - 1)
    columns = (right + torch.arange(width)).clamp(0, width - 1)
    return pictures[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)

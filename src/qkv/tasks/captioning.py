"""Image captioning task."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from qkv.config import Rate
from qkv.datasets.batching import IGNORE, round_up, shuffled_batches
from qkv.datasets.dataset import CaptionDataset
from qkv.datasets.examples.captions import Captions
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.metrics import Metric
from qkv.metrics.alignment_metrics import inside
from qkv.metrics.text_metrics import caption_scores, sentence_chrf
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.nn.losses import alignment_loss, doubly_stochastic_loss, mean_cross_entropy, token_cross_entropy
from qkv.pipelines.captioner import GREEDY, Captioner
from qkv.pipelines.inputs.image_preprocessing import as_model_input, square_side
from qkv.pipelines.pipeline import DecoderTokens
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation, Mistake, worst
from qkv.tasks.base.task import LOSS, Pixels, Sample, Task, TaskConfig, random_batches
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.trained import PAD
from qkv.types import Float, Int, Shaped, Tensor


@dataclass(frozen=True)
class CaptionBatch(TensorBatch):
    """LabeledImages with a caption each; `target_in` begins with <s>, `target_out` ends with </s> and IGNORE."""

    pictures: Shaped[Tensor, "batch channels height width"]  # bytes, or features
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    tokens: int  # number of target tokens

    def count_tokens(self) -> int:
        return int((self.target_out != IGNORE).sum())

    @property
    def images(self) -> Float[Tensor, "batch channels height width"]:
        """The pictures as model input."""
        return as_model_input(self.pictures)


@dataclass(frozen=True)
class CaptionExample:
    """One caption, and the index of its picture."""

    picture: int
    tokens: list[int]


class CaptioningConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy
    shift: Pixels = 0  # maximum random shift in pixels
    group_by_length: bool = False  # batches of captions of similar length, which need less padding


@register("task", "caption")
class CaptioningTask(Task):
    """Every caption once per epoch in random order; pictures can be shifted by a few pixels."""

    title = "captioning"
    cli_command = "caption"
    metrics: ClassVar = {
        "loss": LOSS,
        "exact": Metric("exact", percent=True),
        "bleu": Metric("bleu"),
        "pointing": Metric("pointing", percent=True),
    }
    model = ShowAttendTell
    datasets = (CaptionDataset,)
    batch_units = ("examples",)
    config_class = CaptioningConfig
    test_metrics: ClassVar = {
        "bleu": Metric("BLEU"),
        **{f"bleu_{order}": Metric(f"BLEU-{order}") for order in (1, 2, 3)},
    }
    from_data = ("vocab_size", "channels", "height", "width", "backbone")
    evaluation_unit = "images"
    searches = True
    capturable = True

    @classmethod
    def sizes(cls, data: CaptionDataset, tokenizer: Tokenizer) -> dict[str, Any]:
        _, channels, height, width = data.splits["train"].images.shape
        sizes = {"vocab_size": len(tokenizer), "channels": channels, "height": height, "width": width}
        return {**sizes, "backbone": data.backbone}

    @classmethod
    def reader_options(cls, model: Any) -> dict[str, Any]:
        if model.encoder.name == "features":
            raise InputError("--data needs a model of pixels, but this one takes features (model.encoder.name)")
        return {"side": square_side(model)}

    def setup(self, data: CaptionDataset) -> None:
        """Encode the captions, skipping those longer than the model allows with a note."""
        model, best_by = self.model_config, self.train_config.best_by
        self.train, self.valid = data.splits["train"], data.splits["valid"][: self.train_config.valid_size]
        self.special_tokens = DecoderTokens.from_tokenizer(self.tokenizer, model)
        examples = encode_captions(self.tokenizer, self.train)
        self.captions = [example for example in examples if len(example.tokens) < model.max_length]
        if examples and not self.captions:
            raise InputError(f"every caption is longer than model.max_length = {model.max_length} tokens")
        if best_by == "pointing" and not (data.splits["valid"].objects and model.decoder == "attend"):
            raise InputError(
                "train.best_by 'pointing' requires a model with attention and data with object boxes: shapes"
            )
        if skipped := len(examples) - len(self.captions):
            self.notes += (f"skipped {skipped} caption(s) longer than {model.max_length - 1} tokens",)
        self.number = 0  # of the current epoch

    def describe(self) -> str:
        return f"{len(self.captions):,} captions of {len(self.train):,} images"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        if self.options.group_by_length:
            lengths = [len(example.tokens) + 1 for example in self.captions]
            return shuffled_batches(lengths, self.train_config.batching, self.seed, number)
        return random_batches(len(self.captions), self.size, self.seed, number)

    @property
    def size(self) -> int:
        """Number of pictures per batch."""
        return self.train_config.batch_size

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> CaptionBatch:
        examples, count, width = [self.captions[row] for row in rows], 0, 0
        if padded_to_shape:
            count = self.size
            width = min(round_up(max(len(example.tokens) for example in examples) + 1), self.model_config.max_length)
        batch = self._collate(self.train, examples, count, width)
        if not self.options.shift:
            return batch
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed} {self.number} {rows[0]}").getrandbits(63))
        return replace(batch, pictures=shift_with_edge(batch.pictures, self.options.shift, generator))

    def loss(self, model: ShowAttendTell, batch: CaptionBatch) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats, plus the loss of REINFORCE or of doubly stochastic attention, if configured."""
        logits, weights = model.forward_with_weights(batch.images, batch.target_in)
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.options.label_smoothing, consume=True)
        if model.config.doubly_stochastic:
            loss = loss + model.config.doubly_stochastic * doubly_stochastic_loss(weights, batch.target_out != IGNORE)
        return loss if reward is None else loss + reward

    @torch.inference_mode()
    def score_examples(self, model: ShowAttendTell, examples: Captions) -> dict[str, float]:
        """Loss of all captions, metrics of greedy search, and pointing accuracy where objects are known."""
        texts = self._caption(model, examples, use_engine=model.device.type == "cpu")
        scores = caption_scores(texts, self._references(examples))
        values = {name: score.value for name, score in scores.items() if name in self.metrics}
        return {"loss": self._loss_of(model, examples), **values, **self._pointing_scores(model, examples)}

    @torch.inference_mode()
    def evaluate(
        self,
        model: ShowAttendTell,
        data: CaptionDataset,
        split: str,
        search: GenerationConfig = GREEDY,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Evaluation:
        """Caption the pictures of a split and score the captions against all references."""
        examples = data.splits[split]
        texts = self._caption(model, examples, search, progress)
        scores = caption_scores(texts, self._references(examples))
        values = {name: score.value for name, score in scores.items()}
        return Evaluation(
            len(examples),
            self.evaluation_unit,
            {"loss": self._loss_of(model, examples), **values, **self._pointing_scores(model, examples)},
            {name: score.signature for name, score in scores.items() if score.signature},
            outputs=tuple(texts),
            mistakes=_mistakes(examples, texts, self._references(examples)),
            mistake_score="chrF",
        )

    def _loss_of(self, model: ShowAttendTell, examples: Captions) -> float:
        """Mean cross-entropy of all captions in nats."""
        total, tokens = 0.0, 0
        for chunk in self._chunks(encode_captions(self.tokenizer, examples)):
            batch = self._collate(examples, chunk).to(model.device)
            logits = model(batch.images, batch.target_in)
            total += token_cross_entropy(logits, batch.target_out, IGNORE).item()
            tokens += batch.tokens
        return total / tokens

    def _caption(
        self,
        model: ShowAttendTell,
        examples: Captions,
        search: GenerationConfig = GREEDY,
        progress: Callable[[int], None] = lambda done: None,
        use_engine: bool = True,
    ) -> list[str]:
        """The best caption of each picture."""
        captioner, texts = Captioner(model, self.tokenizer, use_engine=use_engine), list[str]()
        for chunk in self._chunks([CaptionExample(number, []) for number in range(len(examples))]):
            images = self._collate(examples, chunk).to(model.device).images
            texts += [self.tokenizer.decode(best.tokens) for (best,) in captioner.decode(images, search)]
            progress(len(texts))
        return texts

    def _references(self, examples: Captions) -> list[list[str]]:
        return [[self.tokenizer.normalize(text) for text in texts] for texts in examples.texts]

    def _pointing_scores(self, model: ShowAttendTell, examples: Captions) -> dict[str, float]:
        known = examples.objects and model.alignment_layers
        return {"pointing": self._pointing(model, examples)} if known else {}

    @torch.inference_mode()
    def samples(self, model: ShowAttendTell, count: int) -> list[Sample]:
        rows = range(min(count, len(self.valid)))
        images = self._collate(self.valid, [CaptionExample(row, []) for row in rows]).to(model.device).images
        captions = Captioner(model, self.tokenizer, use_engine=False).decode(images)
        texts = [self.tokenizer.decode(best.tokens) for (best,) in captions]
        return [Sample(Path(self.valid.name(row)).name, texts[row], self.valid.texts[row][0]) for row in rows]

    def _pointing(self, model: ShowAttendTell, captions: Captions) -> float:
        """Fraction of object words whose attention peak is inside the object's box.

        Uses the reference captions, so that every word has an object. Each token of a word of several counts.
        """
        size, grid = (model.config.height, model.config.width), model.config.grid
        first = Captions(captions.images, tuple(texts[:1] for texts in captions.texts), captions.objects)
        hits: list[bool] = []
        for chunk in self._chunks(encode_captions(self.tokenizer, first)):
            batch = self._collate(first, chunk).to(model.device)
            _, weights = model.forward_with_weights(batch.images, batch.target_in)
            for example, peaks in zip(chunk, weights.argmax(dim=-1).tolist(), strict=True):
                words = self._word_indices(first.texts[example.picture][0])
                for obj in first.objects[example.picture]:
                    object_peaks = [peak for peak, word in zip(peaks, words, strict=False) if word in obj.words]
                    hits += [inside(peak, grid, size, obj.box) for peak in object_peaks]
        return sum(hits) / len(hits) if hits else float("nan")

    def _word_indices(self, text: str) -> list[int]:
        """Index of the word each token of a caption belongs to; a space belongs to the word after it."""
        words, end = [], 0
        for piece in self.tokenizer.encode_with_offsets([text])[0].pieces:
            end += len(piece)
            words.append(text[:end].count(" "))
        return words

    def _chunks(self, examples: list[CaptionExample]) -> Iterator[list[CaptionExample]]:
        for begin in range(0, len(examples), self.size):
            yield examples[begin : begin + self.size]

    def _collate(
        self, captions: Captions, examples: list[CaptionExample], rows: int = 0, width: int = 0
    ) -> CaptionBatch:
        """Collate examples into a batch of at least `rows` x `width`; padding rows repeat the first picture."""
        missing = max(0, rows - len(examples))
        width = max(width, *(len(example.tokens) + 1 for example in examples))
        target_in = [[self.special_tokens.begin, *example.tokens] for example in examples] + [[]] * missing
        target_out = [[*example.tokens, self.special_tokens.end] for example in examples] + [[]] * missing
        pictures = [example.picture for example in examples] + [examples[0].picture] * missing
        return CaptionBatch(
            torch.from_numpy(captions.images[pictures]),
            torch.tensor([row + [PAD] * (width - len(row)) for row in target_in]),
            torch.tensor([row + [IGNORE] * (width - len(row)) for row in target_out]),
            sum(map(len, target_out)),
        )


def encode_captions(tokenizer: Tokenizer, captions: Captions) -> list[CaptionExample]:
    """Token ids of every caption of every picture."""
    captioned = [(picture, text) for picture, texts in enumerate(captions.texts) for text in texts]
    ids = tokenizer.encode([text for _, text in captioned])
    return [CaptionExample(picture, tokens) for (picture, _), tokens in zip(captioned, ids, strict=True)]


def _mistakes(examples: Captions, texts: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[Mistake, ...]:
    """Return the captions that differ most from the closest of their references, by chrF."""
    return worst(
        Mistake(
            examples.name(row), text, " | ".join(captions), max(sentence_chrf(text, caption) for caption in captions)
        )
        for row, (text, captions) in enumerate(zip(texts, references, strict=True))
        if text not in captions
    )


def shift_with_edge(
    pictures: Shaped[Tensor, "batch channels height width"], max_shift: int, generator: torch.Generator
) -> Shaped[Tensor, "batch channels height width"]:
    """Shift each picture by up to `max_shift` pixels vertically and horizontally, repeating its edge."""
    count, _, height, width = pictures.shape
    vertical, horizontal = torch.randint(-max_shift, max_shift + 1, (2, count, 1), generator=generator)
    rows = (vertical + torch.arange(height)).clamp(0, height - 1)
    columns = (horizontal + torch.arange(width)).clamp(0, width - 1)
    return pictures[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)

"""Language modelling as a task to learn: from a running text, which token comes next."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.data.batching import IGNORE
from qkv.data.registry import Loaded
from qkv.data.tensor_batch import TensorBatch
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.errors import CheckpointError, InputError
from qkv.interop.vocabularies import AnyTokenizer
from qkv.metrics import Metric
from qkv.nn.language_model import LanguageModel, detach_state, replace_tensors, state_tensors
from qkv.nn.state import select
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Tensor

PARTS = 16  # that a validation text is read in, side by side
LEAST_PART = 1024  # tokens; a shorter part would mostly measure how a text begins


@dataclass(frozen=True)
class Window(TensorBatch):
    """The next few tokens of every stream, and for each token the one after it."""

    read: Int[Tensor, "streams length"]
    coming: Int[Tensor, "streams length"]
    opens: bool  # whether the streams begin here

    @property
    def tokens(self) -> int:
        return self.read.numel()


@dataclass
class LanguageModelTask(ScoredTask):
    """The text is cut into streams that are read side by side, a window at a time (truncated back-propagation).

    The state goes over from window to window, the gradient does not; a model with a horizon reads each window afresh. A
    stream begins anew in each epoch, some tokens later or earlier than in the one before, so that the cuts fall
    elsewhere.
    """

    title = "language modelling"
    command = "generate"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),  # nats a token
        "perplexity": Metric("perplexity", higher_is_better=False),  # e to the loss
        "nats": Metric("nats", higher_is_better=False),  # a character
        "bits": Metric("bits", higher_is_better=False),  # a character
    }
    model = LanguageModel
    learns_from = "text"
    from_data = ("vocabulary_size",)

    vocabulary: AnyTokenizer
    text: Int[Tensor, "tokens"]
    valid: "EncodedText"
    settings: Settings
    seed: int
    notes: tuple[str, ...]
    horizon: int | None = None  # of the model

    def __post_init__(self) -> None:
        self.capturable = self.horizon is not None  # where nothing is carried on
        self.offset = 0  # of this epoch's streams in the text
        self.state: Any = None  # where the streams stand

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: AnyTokenizer) -> dict[str, Any]:
        return {"vocabulary_size": len(vocabulary.target)}

    @classmethod
    def prepare(
        cls, data: Loaded, vocabulary: AnyTokenizer, model: Any, train: Settings, seed: int
    ) -> "LanguageModelTask":
        """Encode the texts, once."""
        text = EncodedText.of(vocabulary.target, data.texts["train"]).tokens
        valid = EncodedText.of(vocabulary.target, data.texts["valid"])
        if train.length > train.batch_tokens:
            raise InputError(
                f"train.batch_tokens = {train.batch_tokens} is less than one window of train.length = {train.length}"
            )
        horizon = getattr(model, "max_length", None)
        if horizon is not None and train.length > horizon:
            raise InputError(f"train.length = {train.length} is more than the model can look at: {horizon} tokens")
        task = cls(vocabulary, text, valid, train, seed, data.notes, horizon)
        if len(text) <= task.streams * train.length:
            raise InputError(
                f"the training text has {len(text):,} tokens, too few for {task.streams} streams of "
                f"{train.length} tokens and one more: lower train.batch_tokens or train.length"
            )
        if len(valid.tokens) < 2:
            raise InputError("the validation text has fewer than two tokens: nothing can be predicted in it")
        return task

    @property
    def streams(self) -> int:
        """How many parts of the text are read side by side."""
        return self.settings.batch_tokens // self.settings.length

    def describe(self) -> str:
        return f"{len(self.text):,} tokens"

    def epoch(self, number: int) -> list[list[int]]:
        """One window of all streams a batch."""
        length = self.settings.length
        room = min(length, len(self.text) - self.streams * length)
        self.offset = random.Random(f"{self.seed} {number}").randrange(room)
        return [[window] for window in range((len(self.text) - 1 - self.offset) // self.streams // length)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> Window:
        """A window; they all have one shape."""
        (window,) = rows
        length = self.settings.length
        whole = (len(self.text) - 1 - self.offset) // self.streams  # tokens of a stream
        read, coming = (
            self.text[begin : begin + self.streams * whole].view(self.streams, whole)
            for begin in (self.offset, self.offset + 1)
        )
        here = slice(window * length, (window + 1) * length)
        return Window(read[:, here], coming[:, here], opens=window == 0)

    def loss(self, model: LanguageModel[Any], batch: Window) -> Float[Tensor, ""]:
        """The mean over the window's tokens, in nats; the state is kept for the next window, if that may go on."""
        fresh = batch.opens or self.horizon is not None
        logits, state = model.forward_from(batch.read, model.init_state(len(batch.read)) if fresh else self.state)
        if self.horizon is None:
            self.state = detach_state(state)
        return mean_cross_entropy(logits, batch.coming, IGNORE, self.settings.label_smoothing, consume=True)

    def validate(self, model: LanguageModel[Any]) -> dict[str, float]:
        """How surprising the validation text is, all of it."""
        return self.valid.scores(model, self.settings.batch_tokens, length=self.settings.length)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return [split for split in data.texts if split != "train"]

    def examine(self, model: LanguageModel[Any], data: Loaded, split: str) -> Examined:
        text = EncodedText.of(self.vocabulary.target, data.texts[split])
        scores = text.scores(model, self.settings.batch_tokens, length=self.settings.length)
        return Examined(len(data.texts[split]), "characters", scores)

    def carried(self) -> dict[str, Tensor]:
        return state_tensors(self.state)

    def carry(self, model: LanguageModel[Any], tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        fresh = model.init_state(self.streams)
        if state_tensors(fresh).keys() != tensors.keys():
            raise CheckpointError(f"the checkpoint carries on with {', '.join(tensors)}: not a state of this model")
        self.state = replace_tensors(fresh, {name: tensor.to(model.device) for name, tensor in tensors.items()})


@dataclass(frozen=True)
class EncodedText:
    """A running text as tokens."""

    tokens: Int[Tensor, "tokens"]
    characters: int  # that can be predicted: all but those of the first token

    @classmethod
    def of(cls, vocabulary: Vocabulary | PretrainedTokenizer, text: str) -> "EncodedText":
        (ids,) = vocabulary.encode_ids([text])
        first = len(vocabulary.decode(ids[:1]))
        return cls(torch.tensor(ids, dtype=torch.long), len(vocabulary.normalize(text)) - first)

    @torch.inference_mode()
    def scores(
        self, model: LanguageModel[Any], budget: int, parts: int = PARTS, length: int | None = None
    ) -> dict[str, float]:
        """The metrics of language modelling: sums of -log p over every token but the first, divided.

        The text is cut into `parts`, fewer where it is short, each of them read from a fresh start to its end, `budget`
        tokens at a time. One part is exact; in sixteen the first words of fifteen are harder than they had to be. A
        model with a horizon reads windows of `length` tokens, or as long as it can, each from a fresh start.
        """
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        if model.max_length is None:
            read = self._read(model, budget, max(1, min(parts, len(self.tokens) // LEAST_PART)))
        else:
            read = self._read_windows(model, budget, min(model.max_length, length or model.max_length))
        for logits, coming in read:
            total += token_cross_entropy(logits, coming, IGNORE)
        nats, tokens = float(total), len(self.tokens) - 1
        loss, character = nats / tokens, nats / max(1, self.characters)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),  # more is no number any more
            "nats": character,
            "bits": character / math.log(2),
        }

    def _read(
        self, model: LanguageModel[Any], budget: int, parts: int
    ) -> Iterator[tuple[Float[Tensor, "parts length vocabulary"], Int[Tensor, "parts length"]]]:
        """The logits after every token but the last, and the tokens that come."""
        text = self.tokens.to(model.device)
        whole = (len(text) - 1) // parts
        read, coming = (text[begin : begin + parts * whole].view(parts, whole) for begin in (0, 1))
        state, length = model.init_state(parts), max(1, budget // parts)
        for begin in range(0, whole, length):
            logits, state = model.forward_from(read[:, begin : begin + length], state)
            yield logits, coming[:, begin : begin + length]
        if parts * whole < len(text) - 1:  # what the division left over goes on after the last part
            last = select(state, torch.full((1,), parts - 1, device=model.device))
            logits, _ = model.forward_from(text[None, parts * whole : -1], last)
            yield logits, text[None, parts * whole + 1 :]

    def _read_windows(
        self, model: LanguageModel[Any], budget: int, length: int
    ) -> Iterator[tuple[Float[Tensor, "windows length vocabulary"], Int[Tensor, "windows length"]]]:
        """The same, one window after another, and what is left over as a shorter one."""
        text = self.tokens.to(model.device)
        whole = (len(text) - 1) // length
        read, coming = (text[begin : begin + whole * length].view(whole, length) for begin in (0, 1))
        for some in torch.arange(whole, device=text.device).split(max(1, budget // length)):
            yield model(read[some]), coming[some]
        if whole * length < len(text) - 1:
            yield model(text[None, whole * length : -1]), text[None, whole * length + 1 :]

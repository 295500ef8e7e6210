"""Recordings of speech with their texts."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jaxtyping import Float32
from numpy import ndarray

from qkv.datasets.dataset import Dataset
from qkv.datasets.formats.audio import WavFile, encode_wav

AnyUtterances = TypeVar("AnyUtterances", bound="Utterances")


@dataclass(frozen=True)
class Utterance:
    """A recording, with samples in [-1, 1], and what is said in it."""

    waveform: Float32[ndarray, "samples"]
    text: str


class Utterances(ABC):
    """The utterances of a split; those for training may differ from epoch to epoch."""

    @property
    @abstractmethod
    def rate(self) -> int:
        """Samples per second."""

    @property
    @abstractmethod
    def texts(self) -> Sequence[str]:
        """Texts with all characters of the utterances, to train a tokenizer on."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of utterances, in an epoch."""

    @abstractmethod
    def __getitem__(self: AnyUtterances, index: slice) -> AnyUtterances:
        """Return some of the utterances."""

    @abstractmethod
    def samples(self, index: int, key: str = "") -> int:
        """Return the number of samples of an utterance."""

    @abstractmethod
    def text(self, index: int, key: str = "") -> str:
        """Return the text of an utterance."""

    @abstractmethod
    def utterance(self, index: int, key: str = "") -> Utterance:
        """Return an utterance; `key` is that of the epoch."""

    def name(self, index: int) -> str:
        """Return the file of an utterance, or its number."""
        return f"recording {index + 1}"

    @abstractmethod
    def hashed_bytes(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes that identify the utterances."""


@dataclass(frozen=True)
class Recordings(Utterances):
    """WAV files of one sampling rate, read when they are needed, with a text each."""

    files: tuple[WavFile, ...]
    transcripts: tuple[str, ...]

    @property
    def rate(self) -> int:
        return self.files[0].rate if self.files else 16000

    @property
    def texts(self) -> tuple[str, ...]:
        return self.transcripts

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: slice) -> "Recordings":
        return replace(self, files=self.files[index], transcripts=self.transcripts[index])

    def samples(self, index: int, key: str = "") -> int:
        return self.files[index].samples

    def text(self, index: int, key: str = "") -> str:
        return self.transcripts[index]

    def utterance(self, index: int, key: str = "") -> Utterance:
        return Utterance(self.files[index].read(), self.text(index))

    def name(self, index: int) -> str:
        return str(self.files[index].path)

    def hashed_bytes(self) -> Iterator[bytes]:
        for file, text in zip(self.files, self.texts, strict=True):
            yield f"{text!r} {file.samples}\n".encode() + file.read().tobytes()


class SpeechDataset(Dataset[Utterances]):
    """Recordings with their texts."""

    kind = "speech"
    unit = "recordings"

    def hashed_bytes(self, split: str, examples: Utterances) -> Iterator[bytes | memoryview]:
        yield f"speech {split} {len(examples)} {examples.rate}\n".encode()
        yield from examples.hashed_bytes()

    def training_texts(self) -> Iterator[str]:
        return iter(self.splits["train"].texts)

    def preview(self, split: str) -> Iterator[dict[str, Any]]:
        examples = self.splits[split]
        for index in range(len(examples)):
            seconds = examples.samples(index) / examples.rate
            file = {"recording": str(examples.files[index].path)} if isinstance(examples, Recordings) else {}
            yield {**file, "text": examples.text(index), "length": f"{seconds:.2f} s"}

    def media(self, split: str, index: int) -> tuple[str, bytes]:
        utterances = self.splits[split]
        return "wav", encode_wav(utterances.utterance(index).waveform, utterances.rate)

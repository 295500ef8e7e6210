"""Speech recognition, with the attention of each token over the recording."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32

from qkv.attention import watch
from qkv.datasets.batching import BatchSize, batch_by_length
from qkv.datasets.formats.audio import Recording, WavFile, open_sound
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, GenerationConfig, Hypothesis, Request, Tokens, generate
from qkv.nn.encoders.log_mel import HOPS_PER_SECOND, LogMel, resample
from qkv.nn.interfaces import EncoderDecoder
from qkv.pipelines.output import Answer, AttentionMap, AttentionMaps
from qkv.pipelines.pipeline import DecoderPipeline, DecoderTokens, one_or_many
from qkv.types import Float, Int, Tensor

GREEDY = GenerationConfig()
MAX_BATCH_FRAMES = 2**16  # decoded at a time, beams counted, if no batch size is given
BLOCK_SECONDS = 0.2  # a long recording is cut in the middle of its quietest block of this length,
SEARCHED = 0.25  # in the last quarter of a window
MIN_LIMIT, FRAMES_PER_TOKEN = 10, 4  # most tokens of a recording: 25 per second, more than in any speech


@dataclass(frozen=True, kw_only=True, repr=False)
class Segment(Answer):
    """The transcript of a window; the rows of its maps are its tokens, the columns times in seconds."""

    start: float  # seconds
    end: float
    features: Float32[np.ndarray, "frames mels"]  # log-mel spectrogram

    def to_dict(self) -> dict[str, Any]:
        """Return the segment as plain data, with the times in seconds."""
        times = {"start": round(self.start, 3), "end": round(self.end, 3)}
        return {**times, "text": self.text, "score": round(self.score, 6)}

    @property
    def details(self) -> list[str]:
        return [f"{self.start:.2f} to {self.end:.2f} s", *super().details]


@dataclass(frozen=True, kw_only=True, repr=False)
class Transcript(Answer):
    """The transcript of a recording: `.text`, and the segments that it was read in."""

    segments: tuple[Segment, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the transcript as plain data, as `qkv transcribe --json` prints it."""
        segments = [segment.to_dict() for segment in self.segments]
        return {"recording": self.source, "text": self.text, "score": round(self.score, 6), "segments": segments}

    @property
    def details(self) -> list[str]:
        return [f"{len(self.segments)} segment(s)", *super().details]


@dataclass(frozen=True)
class AudioWindow:
    """A part of a recording at the sampling rate of the model."""

    waveform: Float[Tensor, "samples"]
    start: float = 0.0  # seconds


class Recognizer(DecoderPipeline):
    """A speech recognizer with its tokenizer: `Recognizer("runs/digits-las-0")("call.wav").text`.

    A recording is a WAV file, or a dict of `array` and `sampling_rate` as in `datasets`. One that is longer than the
    model's input is read in windows, cut where it is quiet.
    """

    task_description: ClassVar = "speech recognition"
    required: ClassVar = "a speech recognizer (for qkv transcribe)"
    model_class: ClassVar = EncoderDecoder
    input_types: ClassVar = (str, Path, dict)
    model: EncoderDecoder[Any, Any]

    def setup(self) -> None:
        config, log_mel = self.model.config, self.model.log_mel
        if log_mel is None:
            raise InputError(f"{self.name}: {self.task_description} requires a model of speech, not of texts")
        self.log_mel: LogMel = log_mel
        self.special_tokens = DecoderTokens.from_tokenizer(self.tokenizer, config)
        self.prompt = [self.special_tokens.begin, *getattr(config, "prompt_tokens", ())]
        suppressed = {*self.special_tokens.suppressed, *getattr(config, "suppress_tokens", ())}
        self.tokens = Tokens(
            self.special_tokens.end,
            sorted(suppressed - {self.special_tokens.end}),
            len(self.tokenizer),
            getattr(config, "begin_suppress_tokens", ()),
        )

    @staticmethod
    def as_input(value: Any) -> Any:
        if isinstance(value, np.ndarray | Tensor) and np.ndim(value) and np.asarray(value).dtype.kind in "fiu":
            raise InputError(
                'an array has no sampling rate: pass {"array": array, "sampling_rate": 16000} with the rate of the '
                "recording"
            )
        return value

    @property
    def max_seconds(self) -> float:
        """Length of a window."""
        return (self.log_mel.frames or self.model.config.max_length) / HOPS_PER_SECOND

    @one_or_many
    def __call__(
        self,
        recordings: Sequence[str | Path | dict[str, Any]],
        *,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        batch_size: int | None = None,
    ) -> list[Transcript]:
        """Transcribe one recording or several.

            qkv.Recognizer("runs/digits-las-0")("call.wav", num_beams=4).segments

        Args:
            recordings: A WAV file or a dict of `array` and `sampling_rate`, or several.
            num_beams: Number of beams; 1 is greedy search.
            length_penalty: Scores are log p / length ** length_penalty; greater values favor longer outputs.
            max_new_tokens: Maximum number of new tokens of a window; by default 25 per second.
            batch_size: Number of windows processed at a time; by default as many as fit in memory.

        Returns:
            One `Transcript` for each recording, with `text`, `score` and `segments`.
        """
        config = GenerationConfig(num_beams=num_beams, length_penalty=length_penalty, max_new_tokens=max_new_tokens)
        sounds = [open_sound(recording) for recording in recordings]
        windows = [list(self._windows(sound)) for sound in sounds]
        flat = [window for some in windows for window in some]
        segments = iter(self._transcribe(flat, config, batch_size))
        return [
            _transcript(sound.name, [next(segments) for _ in some]) for sound, some in zip(sounds, windows, strict=True)
        ]

    def stream(self, recording: str | Path | dict[str, Any], config: GenerationConfig = GREEDY) -> Iterator[Segment]:
        """Yield the transcript of each window of a recording; a window is read when the last is transcribed."""
        for window in self._windows(open_sound(recording)):
            yield from self._transcribe([window], config)

    @torch.inference_mode()
    def decode(
        self,
        waveforms: Sequence[Float[Tensor, "_"]],
        config: GenerationConfig = GREEDY,
        batch_size: int | None = None,
    ) -> list[Hypothesis]:
        """Return the best transcript of each waveform, which has the sampling rate of the model."""
        frames = [self.log_mel.count(len(waveform)) for waveform in waveforms]
        widths = [self.log_mel.frames or count for count in frames]
        size = BatchSize(batch_size, "examples") if batch_size else BatchSize(MAX_BATCH_FRAMES // config.num_beams)
        results: dict[int, Hypothesis] = {}
        for rows in batch_by_length(widths, size):
            features, lengths = self.features([waveforms[row] for row in rows])
            limits = [self._limit(frames[row], config) for row in rows]
            results |= zip(rows, self._decode(features, lengths, limits, config), strict=True)
        return [results[row] for row in range(len(waveforms))]

    def features(
        self, waveforms: Sequence[Float[Tensor, "_"]]
    ) -> tuple[Float[Tensor, "batch frames mels"], Int[Tensor, "batch"] | None]:
        """Return the features of waveforms on the model's device."""
        padded, lengths = self.log_mel.pad(waveforms)
        return self.log_mel(padded.to(self.model.device), torch.tensor(lengths, device=self.model.device))

    def _limit(self, frames: int, config: GenerationConfig) -> int:
        limit = min(MIN_LIMIT + frames // FRAMES_PER_TOKEN, self.model.config.max_length - len(self.prompt) - 1)
        return min(limit, config.max_new_tokens or limit)

    def _decode(
        self,
        features: Float[Tensor, "batch frames mels"],
        lengths: Int[Tensor, "batch"] | None,
        limits: list[int],
        config: GenerationConfig,
    ) -> list[Hypothesis]:
        if self.engine is not None:
            requests = [Request(self.prompt, limit, source=row) for limit, row in zip(limits, features, strict=True)]
            results = dict(self.engine.decode(requests, self.tokens, config))
            return [results[row][0] for row in range(len(limits))]
        state = self.model.init_state(self.model.encode(features, lengths))
        *before, begin = self.prompt
        if before:
            _, state = self.model.forward_from(torch.tensor([before] * len(limits), device=features.device), state)
        constraints = DecodingConstraints(
            batch=len(limits),
            begin=begin,
            end=self.tokens.end,
            max_new_tokens=limits,
            suppress_tokens=self.tokens.suppressed,
            vocab_size=self.tokens.vocab_size,
            begin_suppress_tokens=self.tokens.begin_suppressed,
        )
        with self.simple_search():
            return [best for best, *_ in generate(self.model, state, constraints, config)]

    def _transcribe(
        self, windows: Sequence[AudioWindow], config: GenerationConfig, batch_size: int | None = None
    ) -> list[Segment]:
        hypotheses = self.decode([window.waveform for window in windows], config, batch_size)
        return [self._segment(window, best) for window, best in zip(windows, hypotheses, strict=True)]

    @torch.inference_mode()
    def _segment(self, window: AudioWindow, hypothesis: Hypothesis) -> Segment:
        end = window.start + len(window.waveform) / self.log_mel.rate
        frames = self.log_mel.count(len(window.waveform))
        return Segment(
            f"{window.start:.2f}-{end:.2f}",
            self.tokenizer.decode(hypothesis.tokens).strip(),
            hypothesis.score,
            partial(self._attention, window, hypothesis),
            new_tokens=len(hypothesis.tokens),
            start=window.start,
            end=end,
            features=self.features([window.waveform])[0][0, :frames].cpu().numpy(),
        )

    @torch.inference_mode()
    def _attention(self, window: AudioWindow, hypothesis: Hypothesis) -> AttentionMaps:
        """Attention maps of a transcript, from one more forward pass: the heads that align it first, if known."""
        layers = self.model.alignment_layers
        if not layers or not hypothesis.tokens:
            return ()
        features, lengths = self.features([window.waveform])
        target = torch.tensor([[*self.prompt, *hypothesis.tokens]], device=features.device)
        with watch(self.model, layers=list(layers)) as records:
            self.model(features, target, lengths)
        first, frames = len(self.prompt) - 1, self.log_mel.count(len(window.waveform))
        width = records[layers[0]].weights.shape[-1]
        stride = -(-features.shape[1] // width)  # frames per encoder position
        columns = tuple(
            f"{window.start + column * stride / HOPS_PER_SECOND:.2f}"
            for column in range(min(width, -(-frames // stride)))
        )
        rows = tuple(self.tokenizer.piece(token) for token in hypothesis.tokens)
        weights = {
            name: records[name].weights[0, :, first : first + len(rows), : len(columns)].float().cpu().numpy()
            for name in layers
        }
        if heads := getattr(self.model.config, "alignment_heads", ()):
            by_number = [weights[f"decoder.{layer}.cross"][head] for layer, head in heads]
            weights = {"alignment": np.stack(by_number), **weights}
        return tuple(AttentionMap(name, rows, columns, part) for name, part in weights.items())

    def _windows(self, sound: WavFile | Recording) -> Iterator[AudioWindow]:
        """Read a recording window by window."""
        limit, start = int(self.max_seconds * sound.rate), 0
        while start < sound.samples:
            samples = sound.read(start, limit)
            if start + len(samples) < sound.samples:
                samples = samples[: quietest_cut(samples, sound.rate)]
            yield AudioWindow(resample(torch.from_numpy(samples), sound.rate, self.log_mel.rate), start / sound.rate)
            start += len(samples)


def quietest_cut(samples: Float32[np.ndarray, "samples"], rate: int) -> int:
    """Return the middle of the quietest block in the last part of a window."""
    block = int(BLOCK_SECONDS * rate)
    tail = samples[int(len(samples) * (1 - SEARCHED)) :]
    blocks = tail[len(tail) % block :].reshape(-1, block)
    if not len(blocks):
        return len(samples)
    return len(samples) - block * (len(blocks) - int((blocks**2).mean(axis=1).argmin())) + block // 2


def _transcript(name: str, segments: Sequence[Segment]) -> Transcript:
    return Transcript(
        name,
        " ".join(segment.text for segment in segments if segment.text),
        float(np.mean([segment.score for segment in segments])),
        lambda: segments[0].attention,
        new_tokens=sum(segment.new_tokens for segment in segments),
        segments=tuple(segments),
    )

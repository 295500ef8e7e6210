"""Speech recognition task: recordings to texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from qkv.config import NonNegativeInt, Rate, require
from qkv.datasets.batching import IGNORE, PAD_ID, batch_by_length, shuffled_batches
from qkv.datasets.examples.speech import SpeechDataset, Utterance, Utterances
from qkv.datasets.tensor_batch import TensorBatch
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.metrics import Metric
from qkv.metrics.intervals import Interval, proportion_interval
from qkv.metrics.speech_metrics import normalize_transcript, word_error_interval, word_error_rate
from qkv.metrics.text_metrics import exact_match
from qkv.nn.encoders.log_mel import HOPS_PER_SECOND, LogMel, resample
from qkv.nn.interfaces import EncoderDecoder
from qkv.nn.losses import alignment_loss, mean_cross_entropy, token_cross_entropy
from qkv.pipelines.pipeline import DecoderTokens
from qkv.pipelines.recognizer import GREEDY, Recognizer
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation, Mistake, worst
from qkv.tasks.base.task import LOSS, Sample, Task, TaskConfig
from qkv.tasks.base.train_config import TrainConfig
from qkv.types import Float, Int, Tensor

MASKS = 2  # of frequencies, and of times


@dataclass(frozen=True)
class SpeechBatch(TensorBatch):
    """Padded waveforms with their texts; `target_in` begins with <s>, `target_out` ends with </s> and IGNORE."""

    waveforms: Float[Tensor, "batch samples"]
    lengths: Int[Tensor, "batch"]  # in samples
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    tokens: int  # number of target tokens

    def count_tokens(self) -> int:
        return int((self.target_out != IGNORE).sum())


class TranscriptionConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy
    frequency_mask: NonNegativeInt = 0  # widest of two masks of mel features in training (SpecAugment)
    time_mask: NonNegativeInt = 0  # widest of two masks of frames in training (SpecAugment)


@register("task", "transcribe")
class TranscriptionTask(Task):
    """Cross-entropy of the next token of the text; a batch is measured in frames of 10 ms."""

    title = "speech recognition"
    cli_command = "transcribe"
    metrics: ClassVar = {
        "loss": LOSS,
        "wer": Metric("wer", higher_is_better=False, percent=True),
        "exact": Metric("exact", percent=True),
    }
    test_metrics: ClassVar = {
        "wer": Metric("word error rate", higher_is_better=False, percent=True),
        "exact": Metric("exact match", percent=True),
    }
    searches = True
    evaluates_train = False
    model = EncoderDecoder
    datasets = (SpeechDataset,)
    config_class = TranscriptionConfig
    from_data = ("target_vocab_size",)
    evaluation_unit = "recordings"

    @classmethod
    def check_recipe(cls, options: TranscriptionConfig, data: Any, model: Any) -> None:
        encoder = getattr(model, "encoder", None)
        reads_speech = encoder is not None and encoder.cls.reads_speech
        require(reads_speech, "the task transcribe requires a model with model.encoder.name = 'pyramid'")

    def setup(self, data: SpeechDataset) -> None:
        """Check that the recordings fit into the model."""
        encoder = getattr(self.model_config, "encoder", None)  # Whisper has none to choose
        self.log_mel = LogMel(rate=LogMel.rate if encoder is None else encoder.options.get("rate", LogMel.rate))
        self.max_frames: int = self.model_config.max_length
        self.special_tokens = DecoderTokens.from_tokenizer(self.tokenizer, self.model_config)
        self.train, self.valid = data.splits["train"], data.splits["valid"][: self.train_config.valid_size]
        longest = max((self._frames(self.valid, index) for index in range(len(self.valid))), default=0)
        if longest > self.max_frames:
            raise InputError(
                f"a recording has {longest:,} frames of 10 ms: set model.max_length to {longest:,} or more"
            )
        self.number = 0  # of the current epoch

    def describe(self) -> str:
        return f"{len(self.train):,} recordings per epoch"

    def epoch(self, number: int) -> list[list[int]]:
        self.number = number
        lengths = [self._frames(self.train, index, self._key) for index in range(len(self.train))]
        batches = shuffled_batches(lengths, self.train_config.batching, self.seed, number)
        fitting = ([row for row in rows if lengths[row] <= self.max_frames] for rows in batches)
        return [rows for rows in fitting if rows]

    @property
    def _key(self) -> str:
        return f"{self.seed} {self.number}"

    def _frames(self, utterances: Utterances, index: int, key: str = "") -> int:
        return -(-utterances.samples(index, key) * HOPS_PER_SECOND // utterances.rate)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> SpeechBatch:
        return self._collate([self.train.utterance(row, self._key) for row in rows], self.train.rate)

    def _collate(self, utterances: Sequence[Utterance], rate: int) -> SpeechBatch:
        waveforms, lengths = self.log_mel.pad(self._waveforms(utterances, rate))
        texts = self.tokenizer.encode([utterance.text for utterance in utterances])
        begin, end, width = self.special_tokens.begin, self.special_tokens.end, max(map(len, texts)) + 1
        return SpeechBatch(
            waveforms,
            torch.tensor(lengths),
            torch.tensor([[begin, *text] + [PAD_ID] * (width - 1 - len(text)) for text in texts]),
            torch.tensor([[*text, end] + [IGNORE] * (width - 1 - len(text)) for text in texts]),
            sum(map(len, texts)) + len(texts),
        )

    def _waveforms(self, utterances: Sequence[Utterance], rate: int) -> list[Float[Tensor, "_"]]:
        return [resample(torch.from_numpy(utterance.waveform), rate, self.log_mel.rate) for utterance in utterances]

    def loss(self, model: EncoderDecoder[Any, Any], batch: SpeechBatch) -> Float[Tensor, ""]:
        """Mean cross-entropy of the text's tokens in nats, plus the REINFORCE term of hard attention."""
        logits = self._logits(model, batch, masked=True)
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.options.label_smoothing, consume=True)
        return loss if reward is None else loss + reward

    def _logits(
        self, model: EncoderDecoder[Any, Any], batch: SpeechBatch, *, masked: bool = False
    ) -> Float[Tensor, "batch target vocabulary"]:
        assert model.log_mel is not None
        features, lengths = model.log_mel(batch.waveforms, batch.lengths)
        if masked:
            features = mask_bands(features, self.options.time_mask, 1)
            features = mask_bands(features, self.options.frequency_mask, 2)
        return model(features, batch.target_in, lengths)

    @torch.inference_mode()
    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, word error rate and exact match of greedy decoding on the validation recordings."""
        total, tokens, utterances = 0.0, 0, _all(self.valid)
        frames = [self._frames(self.valid, index) for index in range(len(self.valid))]
        for rows in batch_by_length(frames, self.train_config.batching):
            batch = self._collate([utterances[row] for row in rows], self.valid.rate).to(model.device)
            total += token_cross_entropy(self._logits(model, batch), batch.target_out, IGNORE).item()
            tokens += batch.tokens
        texts = self._transcribe(self._recognizer(model), utterances, self.valid.rate)
        return {"loss": total / tokens, **_scores(texts, utterances)}

    def samples(self, model: EncoderDecoder[Any, Any], count: int) -> list[Sample]:
        utterances = _all(self.valid[:count])
        texts = self._transcribe(self._recognizer(model), utterances, self.valid.rate)
        return [
            Sample(Path(self.valid.name(row)).name, text, utterance.text)
            for row, (text, utterance) in enumerate(zip(texts, utterances, strict=True))
        ]

    @classmethod
    def for_evaluation(cls, data: Any, model: Any, options: Any, train: TrainConfig, seed: int) -> "TranscriptionTask":
        none = next(iter(data.splits.values()))[:0]  # the splits of training may be missing
        data = replace(data, splits={"train": none, "valid": none})
        return cls(data, model.tokenizer, model.config, options, train, seed)

    def evaluate(
        self,
        model: EncoderDecoder[Any, Any],
        data: SpeechDataset,
        split: str,
        search: GenerationConfig = GREEDY,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Evaluation:
        """Transcribe the recordings of a split that are not too long for the model, and compare the texts."""
        recordings, recognizer = data.splits[split], self._recognizer(model)
        limit = recognizer.max_seconds
        fitting = [row for row in range(len(recordings)) if recordings.samples(row) <= limit * recordings.rate]
        if not fitting:
            raise InputError(f"{split}: no recording has at most {limit:.0f} seconds")
        utterances = [recordings.utterance(row) for row in fitting]
        texts = self._transcribe(recognizer, utterances, recordings.rate, search)
        progress(len(utterances))
        pairs = zip(fitting, texts, utterances, strict=True)
        wrong = (
            Mistake(recordings.name(row), text, said.text, 1 - _scores([text], [said])["wer"])
            for row, text, said in pairs
            if normalize_transcript(text) != normalize_transcript(said.text)
        )
        return Evaluation(
            len(utterances),
            self.evaluation_unit,
            _scores(texts, utterances),
            outputs=tuple(texts),
            mistakes=worst(wrong),
            mistake_score="word accuracy (1 - word error rate)",
            skipped=len(recordings) - len(fitting),
            intervals=_intervals(texts, utterances),
        )

    def _recognizer(self, model: EncoderDecoder[Any, Any]) -> Recognizer:
        return Recognizer(model, self.tokenizer, use_engine=model.device.type == "cpu")

    def _transcribe(
        self, recognizer: Recognizer, utterances: Sequence[Utterance], rate: int, search: GenerationConfig = GREEDY
    ) -> list[str]:
        hypotheses = recognizer.decode(self._waveforms(utterances, rate), search)
        return [self.tokenizer.decode(best.tokens).strip() for best in hypotheses]


def _all(utterances: Utterances) -> list[Utterance]:
    return [utterances.utterance(index) for index in range(len(utterances))]


def _scores(texts: Sequence[str], utterances: Sequence[Utterance]) -> dict[str, float]:
    """Return the scores of normalized texts: without case and punctuation."""
    texts, references = _normalize(texts, utterances)
    return {"wer": word_error_rate(texts, references), "exact": exact_match(texts, references)}


def _intervals(texts: Sequence[str], utterances: Sequence[Utterance]) -> dict[str, Interval]:
    """Return the 95 % confidence intervals of the scores."""
    texts, references = _normalize(texts, utterances)
    exact = proportion_interval(sum(map(str.__eq__, texts, references)), len(texts))
    wer = word_error_interval(texts, references)
    return {"exact": exact} if wer is None else {"wer": wer, "exact": exact}


def _normalize(texts: Sequence[str], utterances: Sequence[Utterance]) -> tuple[list[str], list[str]]:
    """Return texts and references as they are compared."""
    references = [normalize_transcript(utterance.text) for utterance in utterances]
    return [normalize_transcript(text) for text in texts], references


def mask_bands(
    features: Float[Tensor, "batch frames mels"], widest: int, dim: int
) -> Float[Tensor, "batch frames mels"]:
    """Replace random bands of frames (dim 1) or mels (dim 2) by the mean of the row: SpecAugment (Park et al. 2019)."""
    if not widest:
        return features
    size = features.shape[dim]
    width, start = torch.rand(2, len(features), MASKS, 1, device=features.device)
    width = width * min(widest, size)
    start = start * (size - width)
    index = torch.arange(size, device=features.device)
    masked = ((index >= start) & (index < start + width)).any(dim=1)
    mean = features.mean(dim=(1, 2), keepdim=True)
    return torch.where(masked[:, :, None] if dim == 1 else masked[:, None, :], mean, features)

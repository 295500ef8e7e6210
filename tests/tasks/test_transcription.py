"""Speech recognition task: batches, masks, metrics, and memorizing a few recordings."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.batching import IGNORE
from qkv.datasets.examples.speech import SpeechDataset, Utterance, Utterances
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.registry import lookup
from qkv.tasks.transcription import TranscriptionTask, mask_bands
from qkv.training.recipe import read_recipe

from .settings import prepare

NOTES = {"l": 300, "m": 900, "h": 2700}  # words and their frequencies


@dataclass(frozen=True)
class Tones(Utterances):
    """Recordings of one to three tones of 0.05 seconds; each represents a word."""

    count: int

    @property
    def rate(self) -> int:
        return 8000

    @property
    def texts(self) -> list[str]:
        return [" ".join(NOTES)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: slice) -> "Tones":
        return Tones(len(range(self.count)[index]))

    def _words(self, index: int, key: str) -> list[str]:
        shift = len(key) and int(key.split()[1])
        return [[*NOTES][(index // 3**digit + shift) % 3] for digit in range(1 + index % 3)]

    def text(self, index: int, key: str = "") -> str:
        return " ".join(self._words(index, key))

    def samples(self, index: int, key: str = "") -> int:
        return 400 * len(self._words(index, key))

    def utterance(self, index: int, key: str = "") -> Utterance:
        words, time = self._words(index, key), np.arange(400) / 8000
        tones = [0.3 * np.sin(2 * np.pi * NOTES[word] * time) for word in words]
        return Utterance(np.concatenate(tones).astype(np.float32), " ".join(words))

    def hashed_bytes(self) -> Iterator[bytes]:
        yield b"tones"


DATA = SpeechDataset({"train": Tones(12), "valid": Tones(6), "test": Tones(9)})


def config(tokenizer: Any, **changes: Any) -> RNNSeq2SeqConfig:
    encoder = {"name": "pyramid", "layers": 2, "mels": 12, "rate": 8000}
    options: dict[str, Any] = {"hidden_dim": 32, "embedding_dim": 8, "dropout": 0.0, "cell": "lstm", "max_length": 64}
    return RNNSeq2SeqConfig(target_vocab_size=len(tokenizer), encoder=encoder, decoder="luong", **options | changes)


def prepared(data: SpeechDataset = DATA, changes: Any = (), **train: Any) -> TranscriptionTask:
    tokenizer = lookup("tokenizer", "char").train(data.training_texts())
    batch = {"batch_size": 4, "batch_by": "examples"}
    return prepare(TranscriptionTask, data, tokenizer, config(tokenizer, **dict(changes)), **{**batch, **train})


def model_for(task: TranscriptionTask) -> RNNSeq2Seq:
    torch.manual_seed(0)
    return RNNSeq2Seq(task.model_config)


def test_an_epoch_has_every_recording_once_in_batches_of_similar_length() -> None:
    task = prepared()
    for number in range(2):
        batches = task.epoch(number)
        assert sorted(row for rows in batches for row in rows) == list(range(12))
        assert all(len({task.train.samples(row) for row in rows}) == 1 for rows in batches)
    assert prepared().epoch(1) == batches


def test_a_batch_has_padded_waveforms_and_shifted_texts() -> None:
    task = prepared()
    task.epoch(1)
    batch = task.batch([0, 2])
    assert batch.lengths.tolist() == [400, 1200]
    assert batch.waveforms[0, 400:].eq(0).all()
    said = [task.train.utterance(row, "0 1") for row in (0, 2)]
    np.testing.assert_array_equal(batch.waveforms[0, :400], said[0].waveform)
    for utterance, inputs, outputs in zip(said, batch.target_in, batch.target_out, strict=True):
        assert task.tokenizer.decode(outputs[outputs != IGNORE].tolist()[:-1]) == utterance.text
        assert inputs[1 : len(utterance.text) + 1].equal(outputs[: len(utterance.text)])
    assert batch.tokens == batch.count_tokens() == sum(len(utterance.text) + 1 for utterance in said)


def test_the_loss_is_the_mean_cross_entropy_of_the_single_recordings() -> None:
    task = prepared()
    model = model_for(task).eval()
    task.epoch(0)
    total, tokens = 0.0, 0
    for row in (0, 1, 2):
        batch = task.batch([row])
        features, lengths = model.log_mel(batch.waveforms, batch.lengths)
        logits = model(features[:, : int(lengths)], batch.target_in)
        total += F.cross_entropy(logits[0], batch.target_out[0], reduction="sum").item()
        tokens += batch.tokens
    assert task.loss(model, task.batch([0, 1, 2])).item() == pytest.approx(total / tokens, rel=1e-5)


def test_a_few_recordings_are_memorized_and_scored() -> None:
    task = prepared(batch_size=12)
    model = model_for(task)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-2)
    (rows,) = task.epoch(0)
    before = task.validate(model.eval())
    for _ in range(40):
        loss = task.loss(model.train(), task.batch(rows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = task.validate(model.eval())
    assert after.keys() == {*task.metrics} == {"loss", "wer", "exact"}
    assert before["wer"] > 0.5
    assert after["loss"] < 0.2 < before["loss"]
    assert (after["wer"], after["exact"]) == (0, 1)
    for search in (GenerationConfig(), GenerationConfig(num_beams=3)):
        evaluation = task.evaluate(model, DATA, "test", search)
        assert (evaluation.size, evaluation.scores["wer"]) == (9, 0)
        assert evaluation.outputs[1] == DATA.splits["test"].utterance(1).text
    assert [sample.output for sample in task.samples(model, 2)] == [
        DATA.splits["valid"].utterance(i).text for i in (0, 1)
    ]


def test_one_split_can_be_evaluated_without_those_of_training() -> None:
    task = prepared()
    model = model_for(task).eval()
    model.tokenizer = task.tokenizer
    alone = replace(DATA, splits={"calls": DATA.splits["test"][:4]})
    evaluation = TranscriptionTask.for_evaluation(alone, model, task.options, task.train_config, 0).evaluate(
        model, alone, "calls"
    )
    assert evaluation.size == 4
    assert evaluation.outputs == task.evaluate(model, DATA, "test").outputs[:4]


def test_masks_cover_whole_bands_and_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    features = torch.randn(50, 40, 12)
    for dim, widest in ((1, 10), (2, 4)):
        masked = mask_bands(features, widest, dim)
        changed = (masked != features).any(dim=3 - dim)
        assert changed.equal((masked != features).all(dim=3 - dim))
        assert 0 < changed.sum(dim=1).max() <= 2 * (widest + 1)
        mean = features.mean(dim=(1, 2), keepdim=True).expand_as(features)
        torch.testing.assert_close(masked[masked != features], mean[masked != features])
    assert mask_bands(features, 0, 1) is features
    assert mask_bands(features, 99, 2).shape == features.shape


def test_recordings_longer_than_the_model_allows_raise() -> None:
    with pytest.raises(InputError, match=r"model\.max_length"):
        prepared(changes={"max_length": 10})


@pytest.mark.parametrize("model", ["name = 'rnn_seq2seq', encoder = 'rnn'", "name = 'transformer'"])
def test_a_model_of_texts_is_rejected(tmp_path: Path, model: str) -> None:
    (tmp_path / "r.toml").write_text(f"task = 'transcribe'\ndata = {{ name = 'fsdd' }}\nmodel = {{ {model} }}\n")
    with pytest.raises(InputError, match="pyramid"):
        read_recipe(str(tmp_path / "r.toml"))


@pytest.mark.parametrize("name", ["digits-las", "digits-las-unseen"])
def test_recipes_are_valid(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.task_class is TranscriptionTask
    assert recipe.model.encoder.name == "pyramid"

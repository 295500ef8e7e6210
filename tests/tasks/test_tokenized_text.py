"""Language modelling of text in shards: the tokens of the text in memory, in an order that is computed."""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import TextDataset
from qkv.datasets.shards import large_text
from qkv.datasets.shards.large_text import LargeText, recorded_sha256, tokenized_folder
from qkv.datasets.user_texts import UserText
from qkv.errors import InputError
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.tasks.base import tokenized_text
from qkv.tasks.base.task import train_tokenizer
from qkv.tasks.base.tokenized_text import TokenizedText
from qkv.tasks.language_modeling import LanguageModelingTask
from qkv.tasks.packed_lm import PackedLMTask
from qkv.tokenizers import BPETokenizer, CharTokenizer
from qkv.tokenizers.trained import END
from tests.tasks.settings import prepare

GPT = {"dim": 8, "heads": 2, "layers": 1, "max_length": 16, "dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and many small shards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(large_text, "MIN_SHARD_BYTES", 2000)


def documents(count: int = 200) -> list[str]:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(100)]
    return [" ".join(rng.choices(words, k=rng.randint(2, 30))) for _ in range(count)]


TEXT = "\n\n".join(documents())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def load(*files: Path, **options: Any) -> Any:
    return UserText(train=tuple(map(str, files)), **{"shards": True, "workers": 1, **options}).load()


def language_model(data: Any, model: Any = None, seed: int = 0, **options: Any) -> LanguageModelingTask:
    model = GPT2Config(vocab_size=30, **GPT) if model is None else model
    settings = {"batch_size": 80, "length": 16, **options}
    return prepare(LanguageModelingTask, data, CharTokenizer.train([TEXT]), model, seed, **settings)


def test_splits_of_a_text_in_shards(file: Path) -> None:
    data = load(file)
    assert isinstance(data, LargeText)
    valid = data.splits["valid"]
    train = "".join(piece for part in data.train for piece in data.source.pieces(part))
    assert valid + train == TEXT
    assert 0.04 < len(valid) / len(TEXT) < 0.06
    assert data.documents("valid") + data.documents("train") == documents()
    assert (data.size("train"), data.unit) == (len(TEXT), "bytes")
    other = load(file, valid=(str(file),), test=(str(file),))
    assert other.splits["valid"] == other.splits["test"] == TEXT
    assert not other.held_out
    with pytest.raises(InputError, match=r"data\.size"):
        load(file, size=10)


def test_large_texts_are_read_from_shards_and_small_ones_from_memory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = load(file, shards=None)
    assert type(small) is TextDataset
    assert small.splits["train"] + small.splits["valid"] == TEXT
    monkeypatch.setattr("qkv.datasets.user_texts.LARGE_BYTES", len(TEXT) - 1)
    assert isinstance(load(file, shards=None), LargeText)
    assert type(load(file, shards=False)) is TextDataset


def test_formats_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in documents(20)))
    data = load(path, shards=False, column="body")
    assert data.splits["train"] + data.splits["valid"] == "\n\n".join(documents(20))
    assert load(path, column="body").documents("train")[-3:] == documents(20)[-3:]


def test_unshuffled_batches_are_those_of_the_text_in_memory(file: Path) -> None:
    data = load(file)
    train = "".join(piece for part in data.train for piece in data.source.pieces(part))
    memory = TextDataset({"train": train, "valid": data.splits["valid"]})
    shards, tensors = language_model(data, shuffle=False), language_model(memory)
    assert len(shards.text.index.shards) > 5
    for epoch in (0, 3):
        batches = shards.epoch(epoch)
        assert list(batches) == list(tensors.epoch(epoch))
        for rows in batches:
            ours, theirs = shards.batch(rows), tensors.batch(rows)
            assert ours.inputs.equal(theirs.inputs)
            assert ours.targets.equal(theirs.targets)
            assert ours.starts_stream == theirs.starts_stream


@pytest.mark.parametrize("in_shards", [True, False])
def test_shuffled_batches_have_every_chunk_once(file: Path, in_shards: bool) -> None:
    data = load(file) if in_shards else TextDataset({"train": TEXT, "valid": TEXT[:100]})
    task = language_model(data, shuffle=None if in_shards else True)
    tokens = task.text[: len(task.text)].tolist()
    orders = []
    for epoch in (0, 1, 0):
        batches = task.epoch(epoch)
        starts = []
        for rows in batches:
            chunk = task.batch(rows)
            assert chunk.inputs.shape == (5, 16)
            for row, inputs, targets in zip(rows, chunk.inputs.tolist(), chunk.targets.tolist(), strict=True):
                start = task.offset + 16 * row
                assert (inputs, targets) == (tokens[start : start + 16], tokens[start + 1 : start + 17])
                starts.append(start)
        assert len(set(starts)) == len(starts)
        assert 16 * len(starts) > len(tokens) - 16 * 7  # the rest is less than a batch and two chunks
        orders.append(starts)
    assert orders[0] == orders[2] != orders[1]
    assert list(language_model(data, seed=1, shuffle=True).epoch(0)) != list(
        language_model(data, shuffle=True).epoch(0)
    )


def test_models_that_carry_their_state_are_not_shuffled(file: Path) -> None:
    data = load(file)
    config = RNNLMConfig(vocab_size=30, hidden_dim=8)
    task = language_model(data, config)
    assert not task.shuffled
    model = RNNLM(config.replace(vocab_size=len(task.tokenizer))).eval()
    batches = [task.batch(rows) for rows in task.epoch(0)][:3]
    inputs, targets = (torch.cat([getattr(batch, name) for batch in batches], 1) for name in ("inputs", "targets"))
    losses = F.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")
    for number, batch in enumerate(batches):
        expected = losses[:, 16 * number : 16 * (number + 1)].mean()
        assert task.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(InputError, match="bounded context"):
        language_model(data, config, shuffle=True)


def test_validation_is_that_of_the_held_out_text(file: Path) -> None:
    data = load(file)
    task = language_model(data)
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=len(task.tokenizer), **GPT)).eval()
    memory = language_model(TextDataset({"train": TEXT, "valid": data.splits["valid"]}))
    assert task.validate(model) == memory.validate(model)
    assert task.evaluate(model, data, "valid").size == len(data.splits["valid"])


def packed(data: Any, tokenizer: Any, **options: Any) -> PackedLMTask:
    config = GPT2Config(vocab_size=len(tokenizer), **GPT, has_end_token=True)
    return prepare(PackedLMTask, data, tokenizer, config, **{"batch_size": 64, "length": 16, **options})


def test_packed_rows_of_shards_keep_documents_apart(file: Path) -> None:
    data = load(file)
    tokenizer = BPETokenizer.train([TEXT], vocab_size=80)
    task = packed(data, tokenizer)
    texts = data.documents("train")
    stream = [token for text in texts for token in (*tokenizer.encode(text), END)]
    owner = [number for number, text in enumerate(texts) for _ in (*tokenizer.encode(text), END)]
    assert task.describe() == f"{len(texts):,} documents, {len(stream):,} tokens"
    orders = []
    for epoch in (0, 1, 0):
        seen = []
        for rows in task.epoch(epoch):
            batch = task.batch(rows, padded_to_shape=True)
            columns = (tensor.tolist() for tensor in (batch.inputs, batch.documents, batch.targets))
            for row, inputs, indices, targets in zip(rows, *columns, strict=True):
                start = task.offset + 16 * row
                seen.append(start)
                assert inputs == stream[start : start + 16]
                owners = owner[start : start + 16]
                assert [a == b for a in indices for b in indices] == [a == b for a in owners for b in owners]
                following = [stream[start + i + 1] if i < 15 and owners[i] == owners[i + 1] else -1 for i in range(16)]
                assert targets == following
            assert batch.tokens == int((batch.targets >= 0).sum())
        assert len(set(seen)) == len(seen) >= len(stream) // 16 - 5
        orders.append(seen)
    assert orders[0] == orders[2] != orders[1]
    with pytest.raises(InputError, match="too few"):
        packed(data, tokenizer, batch_size=10**6)


def folders() -> set[str]:
    return {path.name for path in tokenized_folder().iterdir() if re.match(r"[0-9a-f]{16}-", path.name)}


def test_a_text_is_hashed_and_tokenized_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = language_model(load(file)).text[:].tolist()
    (folder,) = folders()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("is done again")

    with monkeypatch.context() as patch:
        patch.setattr(large_text, "sha256", fail)
        patch.setattr(tokenized_text, "build_shards", fail)
        again = language_model(load(file), length=8, shuffle=False)
    assert again.text[:].tolist() == tokens
    file.touch()  # hashed again, with the same result
    with monkeypatch.context() as patch:
        patch.setattr(tokenized_text, "build_shards", fail)
        language_model(load(file))
    data = file.read_text()
    file.write_text(data[:-5] + "abcde")
    assert language_model(load(file)).text[:].tolist()[-5:] != tokens[-5:]
    assert len(folders()) == 2
    copy = file.with_name("copy.txt")
    copy.write_text(data)
    with monkeypatch.context() as patch:
        patch.setattr(tokenized_text, "build_shards", fail)
        assert language_model(load(copy)).text.folder.name == folder


def test_hash_is_recorded_until_the_file_changes(file: Path) -> None:
    first = recorded_sha256(file)
    assert first == recorded_sha256(file)
    status = file.stat()
    file.write_text(TEXT.replace("a", "b"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of the status change cannot be set
    assert recorded_sha256(file) != first


def test_folder_depends_on_text_tokenizer_and_unit(file: Path) -> None:
    data = load(file)
    tokenizers = CharTokenizer.train([TEXT]), BPETokenizer.train([TEXT], vocab_size=80)
    paths = [TokenizedText(data, tokenizer, unit).folder for tokenizer in tokenizers for unit in ("text", "documents")]
    assert len(set(paths)) == 4
    reloaded = type(tokenizers[1]).from_json(tokenizers[1].to_json(), "it")
    assert TokenizedText(data, reloaded, "documents").folder == paths[3]  # a resumed run finds its shards


def test_tokenizer_is_trained_on_a_sample_and_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = UserText(train=(str(file),), shards=True, tokenizer={"name": "bpe", "vocab_size": 60})
    data = config.load()
    monkeypatch.setattr(large_text, "SAMPLE_BYTES", 3000)
    sample = [*data.training_texts()]
    assert 2000 < len("".join(sample)) <= 3000
    assert all(text in TEXT for text in sample)
    assert "".join(sample) not in TEXT  # it is from all over the text
    tokenizer = train_tokenizer(data, config)
    assert tokenizer.vocab == BPETokenizer.train(sample, vocab_size=60).vocab
    monkeypatch.setattr(BPETokenizer, "train", None)
    assert train_tokenizer(config.load(), config).vocab == tokenizer.vocab


def test_a_file_that_changes_while_it_is_tokenized_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = CharTokenizer.encode

    def change(self: Any, texts: Any, **options: Any) -> Any:
        file.write_text(TEXT.upper())
        return encode(self, texts, **options)

    data = load(file)
    text = TokenizedText(data, CharTokenizer.train([TEXT]), "text")
    monkeypatch.setattr(CharTokenizer, "encode", change)
    with pytest.raises(InputError, match="was changed while it was tokenized"):
        text.open()
    assert not [*text.folder.glob("[0i]*.json")]  # neither the index nor records of shards

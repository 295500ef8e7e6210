"""Tests of the dataset registry: splits and fingerprints."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.datasets.corpora.synthetic import dates
from qkv.datasets.dataset import Dataset, DatasetConfig, PairDataset, TextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.registry import registered
from qkv.training.recipe import Recipe
from tests.datasets.build import dataset, load


def tsv(folder: Path, name: str, rows: list[tuple[str, str]]) -> str:
    path = folder / name
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return str(path)


ROWS = [(f"source {number % 70}", f"target {number}") for number in range(100)]


def test_dates_have_three_splits_of_the_configured_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dates, "HELD_OUT", 30)
    splits = load("dates", size=50).splits
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 50, "valid": 30, "test": 30}


def test_user_pairs_without_a_validation_file_are_split_by_source(tmp_path: Path) -> None:
    loaded = load("pairs", train=(tsv(tmp_path, "a.tsv", ROWS),), valid_share=0.2)
    train, valid = loaded.splits["train"], loaded.splits["valid"]
    assert len({pair.source for pair in valid}) == 14
    assert not {pair.source for pair in train} & {pair.source for pair in valid}
    assert len(train) + len(valid) == 100
    assert "test" not in loaded.splits


def test_the_validation_split_does_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    mixed = random.Random(3).sample(ROWS, len(ROWS))
    files = (tsv(tmp_path, "a.tsv", ROWS), tsv(tmp_path, "b.tsv", mixed))
    one, other = (load("pairs", train=(file,)) for file in files)
    assert set(one.splits["valid"]) == set(other.splits["valid"])
    assert one.fingerprint != other.fingerprint  # the order decides the batches


def test_user_files_become_splits_with_notes(tmp_path: Path) -> None:
    train, valid, test = (tsv(tmp_path, name, [(name, "x"), ("", "y")]) for name in ("train", "valid", "test"))
    loaded = load("pairs", train=(train,), valid=(valid,), test=(test,))
    assert loaded.splits == {name: [Pair(name, "x")] for name in ("train", "valid", "test")}
    assert len(loaded.notes) == 3
    with pytest.raises(InputError, match="line 2 has an empty side"):
        load("pairs", train=(train,), valid=(valid,), strict=True)


def test_user_pairs_need_a_file() -> None:
    with pytest.raises(InputError, match=r"no training pairs given: --data pairs\.tsv"):
        load("pairs")
    with pytest.raises(InputError, match=r"no texts with labels given: --data texts\.tsv"):
        load("labelled")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("dates", {"size": 0}, "data.size must be between 1 and 10,000,000, not 0"),
        ("dates", {"size": 10**9}, "data.size must be between 1 and 10,000,000, not 1000000000"),
        ("bandits", {"size": 9}, "data.size does not apply here: remove it"),
        ("pairs", {"valid_share": 1.0}, "data.valid_share must be greater than 0 and less than 1, not 1.0"),
        ("date", {}, "data.name: unknown dataset 'date' (did you mean dates?)"),
        ("multi3k", {}, "data.name: unknown dataset 'multi3k' (did you mean multi30k?)"),
        ("dates", {"tokenizer": "bpa"}, "data.tokenizer: unknown tokenizer 'bpa' (did you mean bpe?)"),
        ("dates", {"tokenizer": {"name": "bpe", "vocab_size": 4}},
         "data.tokenizer.vocab_size must be between 5 and 1,000,000, not 4"),
        ("dates", {"target_tokenizer": "wrd"}, "data.target_tokenizer: unknown tokenizer 'wrd' (did you mean word?)"),
        ("dates", {"lowercase_source": True}, "data.lowercase_source needs target_tokenizer"),
        ("labelled", {"target_tokenizer": "word"}, "data.target_tokenizer does not apply here: remove it"),
    ],
)  # fmt: skip
def test_invalid_data_configs_are_rejected(name: str, data: dict[str, object], words: str) -> None:
    task = {"bandits": "bandit", "labelled": "classify"}.get(name, "translate")
    table = {"task": task, "data": {"name": name, **data}, "model": {"name": "rnn_seq2seq"}}
    with pytest.raises(InputError) as caught:
        Recipe.from_table(table, "recipe")
    assert str(caught.value).startswith(f"recipe: {words}")


def test_every_dataset_has_a_summary_a_license_and_columns() -> None:
    datasets = registered("dataset")
    assert len(datasets) == 42
    for name, dataset_class in datasets.items():
        assert issubclass(dataset_class, DatasetConfig)
        assert dataset_class.registered_name == name
        assert dataset_class.summary
        assert dataset_class.license
        assert dataset_class.columns
        assert issubclass(dataset_class.dataset_class, Dataset)
    texts = [name for name, dataset_class in datasets.items() if dataset_class.dataset_class is TextDataset]
    assert sorted(texts) == ["nottingham", "python_stdlib", "text", "tinyshakespeare"]


def test_every_dataset_file_has_a_hash_a_size_and_https_urls() -> None:
    files = [file for dataset in registered("dataset").values() for file in dataset.files]
    paths = {file.path: file for file in files}
    assert len(paths) == 101
    assert all(paths[file.path] == file for file in files)  # datasets may share files
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.size > 0
        assert not Path(file.path).is_absolute()
        assert file.url == "" or file.url.startswith("https://")


def test_absolute_paths_work_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    config = dataset("pairs", train=("a.tsv",), folder="data")
    assert config.train == (str(tmp_path / "a.tsv"),)
    assert config.folder == str(tmp_path / "data")
    assert dataset("dates", folder="~/data").folder == "/home/someone/data"
    assert dataset("dates").folder is None
    assert dataset("flickr8k", features="grids.safetensors").features == str(tmp_path / "grids.safetensors")


some_text = st.text(st.characters(codec="utf-8"), max_size=4)
rows = st.lists(st.tuples(some_text, some_text), min_size=1, max_size=5)


@given(rows, rows)
def test_the_fingerprint_is_equal_only_if_the_pairs_are(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    prints = [PairDataset({"train": [Pair(*row) for row in rows]}).fingerprint for rows in (one, other)]
    assert (prints[0] == prints[1]) == (one == other)


def test_the_fingerprint_changes_with_any_change_of_any_pair() -> None:
    pairs = [Pair("a\0b", "c", ((0, 1),)), Pair("d", "e")]
    loaded = PairDataset({"train": pairs, "valid": pairs})
    changed = [
        [Pair("a", "b\0c", ((0, 1),)), pairs[1]],  # texts that would read alike one after the other
        [replace(pairs[0], gold=((0, 2),)), pairs[1]],
        [replace(pairs[0], gold=None), pairs[1]],
        [pairs[0], replace(pairs[1], target="E")],
        pairs[::-1],
        pairs[:1],
        [*pairs, pairs[1]],
    ]
    prints = {PairDataset({"train": split, "valid": pairs}).fingerprint for split in changed}
    prints |= {PairDataset({"train": pairs, "valid": split}).fingerprint for split in changed}
    prints |= {PairDataset({"train": pairs}).fingerprint, PairDataset({"train": pairs, "test": pairs}).fingerprint}
    assert len(prints) == 2 * len(changed) + 2
    assert loaded.fingerprint not in prints
    assert loaded.fingerprint == PairDataset({"valid": list(pairs), "train": list(pairs)}, notes=("other",)).fingerprint


def test_the_fingerprint_of_texts_changes_with_any_character_and_split() -> None:
    texts = [
        {"train": "ab", "valid": "c"},
        {"train": "a", "valid": "bc"},
        {"train": "ab"},
        {"valid": "c", "test": "ab"},
    ]
    assert len({TextDataset(some).fingerprint for some in texts}) == len(texts)
    assert TextDataset(texts[0]).fingerprint == TextDataset(dict(reversed(texts[0].items()))).fingerprint


def test_size_truncates_the_training_split_only(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{number}\t{number}\n" for number in range(100)), encoding="utf-8")
    whole = load("pairs", train=(str(path),))
    part = load("pairs", train=(str(path),), size=7)
    assert part.splits["train"] == whole.splits["train"][:7]
    assert part.splits["valid"] == whole.splits["valid"]
    assert part.fingerprint != whole.fingerprint


def test_the_end_of_a_user_text_is_held_out_for_validation(tmp_path: Path) -> None:
    for name, text in (("one.txt", "abcdefgh"), ("two.txt", "ijklmnopqr\n")):
        (tmp_path / name).write_text(text)
    files = (str(tmp_path / "one.txt"), str(tmp_path / "two.txt"))
    found = load("text", train=files, valid_share=0.25).splits
    assert found == {"train": "abcdefgh\nijklmn", "valid": "opqr\n"}
    both = load("text", train=files[:1], valid=files[1:]).splits
    assert both == {"train": "abcdefgh", "valid": "ijklmnopqr\n"}
    with pytest.raises(InputError, match=r"no text given: --data book\.txt"):
        load("text")

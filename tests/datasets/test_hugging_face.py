"""Objects of the library datasets are exported to folders that are read like files of the user."""

import json
from pathlib import Path

import pytest
from PIL import Image

from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.squad import Passage, Question
from qkv.datasets.examples.tagged import Tagged
from qkv.datasets.hugging_face import export_dataset, export_rows, has_rows, is_dataset
from qkv.errors import InputError
from tests.datasets.build import load
from tests.pipelines.recordings import write_wav

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def reviews(count: int = 20) -> object:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    columns = {"text": [f"text {number}" for number in range(count)], "label": [number % 2 for number in range(count)]}
    return datasets.Dataset.from_dict(columns, features=features)


def recordings(paths: list[Path]) -> object:
    """Recordings with a letter each; half of them are files, half of them bytes."""
    cells = [
        {"bytes": None if number % 2 else path.read_bytes(), "path": str(path)} for number, path in enumerate(paths)
    ]
    data = datasets.Dataset.from_dict({"audio": cells, "text": list("abcd")[: len(paths)]})
    return data.cast_column("audio", datasets.Audio())


def test_class_labels_are_written_by_name_and_splits_are_renamed():
    parts = {"train": reviews(), "validation": reviews(4), "test": reviews(2), "unsupervised": reviews(1)}
    folder = export_dataset(datasets.DatasetDict(parts))
    assert sorted(path.name for path in folder.iterdir()) == ["test.jsonl", "train.jsonl", "valid.jsonl"]
    assert json.loads((folder / "train.jsonl").read_text().splitlines()[1]) == {"text": "text 1", "label": "good"}
    data = load("labelled", train=(str(folder),))
    assert {split: len(pairs) for split, pairs in data.splits.items()} == {"train": 20, "valid": 4, "test": 2}
    assert data.splits["train"][1] == Pair("text 1", "good")


def test_the_same_dataset_is_exported_once_and_another_elsewhere(tmp_path):
    data = reviews()
    folder = export_dataset(data)
    before = (folder / "train.jsonl").stat().st_mtime_ns
    assert export_dataset(data) == folder
    assert (folder / "train.jsonl").stat().st_mtime_ns == before
    assert export_dataset(data.select(range(5))) != folder
    assert export_dataset(data, tmp_path / "mine") == tmp_path / "mine"


def test_nested_columns_of_translations_questions_and_tags_are_read():
    pairs = datasets.Dataset.from_dict({"translation": [{"en": f"hello {n}", "de": f"hallo {n}"} for n in range(5)]})
    found = load("pairs", train=(str(export_dataset(pairs)),)).splits["train"]
    assert Pair("hello 1", "hallo 1") in found or Pair("hello 2", "hallo 2") in found
    columns = {
        "question": ["Where?"] * 5, "context": [f"In Rome {n}" for n in range(5)],
        "answers": [{"text": ["Rome"], "answer_start": [3]}] * 5,
    }  # fmt: skip
    found = load("questions", train=(str(export_dataset(datasets.Dataset.from_dict(columns))),)).splits["train"]
    assert all(question == Question("Where?", question.text, (Passage(3, 7),)) for question in found)
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "X"])),
        }
    )
    tagged = datasets.Dataset.from_dict({"tokens": [["a", f"b{n}"] for n in range(5)], "tags": [[0, 1]] * 5}, features)
    found = load("tagged", train=(str(export_dataset(tagged)),)).splits["train"]
    assert all(sentence == Tagged(sentence.words, ("O", "X")) for sentence in found)


def test_images_and_recordings_are_written_as_files(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "light"])})
    images = [Image.new("RGB", (8, 8), (100 * (n % 2) + n,) * 3) for n in range(8)]
    data = datasets.Dataset.from_dict({"image": images, "label": [n % 2 for n in range(8)]}, features=features)
    train = load("images", train=(str(export_dataset(data)),), side=8).splits["train"]
    assert all(train.names[label] == ("light" if image.min() >= 100 else "dark")
               for image, label in zip(train.pixels, train.labels, strict=True))  # fmt: skip
    paths = [write_wav(tmp_path / f"{n}.wav", 0.1, 8000, seed=n) for n in range(4)]
    data = recordings(paths)
    files = [path.read_bytes() for path in paths]
    speech = load("speech", train=(str(export_dataset(data)),))
    splits = speech.splits.values()
    listed = [row for split in splits for row in zip(split.texts, split.files, strict=True)]
    assert {text: file.path.read_bytes() for text, file in listed} == dict(zip("abcd", files, strict=True))
    (tmp_path / "a.flac").write_bytes(b"fLaC" + bytes(100))
    with pytest.raises(InputError, match="WAV"):
        export_dataset(recordings([tmp_path / "a.flac"]), tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_tables_and_lists_of_dicts_are_written_as_json_lines():
    rows = [{"text": "a fine film", "label": "good", "year": 1999}, {"text": "dull", "label": "bad", "year": None}]
    file = export_rows(rows)
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    assert export_rows(rows) == file
    frame = pytest.importorskip("pandas").DataFrame(rows)
    assert has_rows(frame)
    assert [json.loads(line) for line in export_rows(frame).read_text().splitlines()] == rows
    assert has_rows(rows)
    for other in (["a.csv"], "a.csv", {"name": "dates"}, []):
        assert not has_rows(other)


def test_streams_other_objects_and_missing_splits_are_errors():
    for wrong in (reviews().to_iterable_dataset(), {"train": 1}, datasets.DatasetDict({"extra": reviews()}), [1]):
        with pytest.raises(InputError):
            export_dataset(wrong)
    assert is_dataset(reviews())
    assert not is_dataset({"train": 1})

"""Records: round trips, old and damaged files."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from qkv.errors import InputError
from qkv.experiments.results import RESULTS, append_record, measures, read_records

from .records import RECORD, record


def test_records_survive_a_round_trip_oldest_first(tmp_path: Path) -> None:
    records = [RECORD, record(seed=1, by_length=(), changes=("model.score=dot",)), record(seed=2, commit="")]
    for item in records:
        assert append_record(tmp_path, item) == tmp_path / RESULTS
    assert read_records(tmp_path) == records


def test_an_old_record_without_training_environment_is_read(tmp_path: Path) -> None:
    later = ("precision", "graphs", "trained_torch", "trained_commit", "trained_source_hash")
    old = {name: value for name, value in asdict(RECORD).items() if name not in later}
    (tmp_path / RESULTS).write_text(json.dumps(old | {"trained_on": ""}) + "\n")
    (loaded,) = read_records(tmp_path)
    assert (loaded.recipe, loaded.trained_on, loaded.trained_commit) == ("multi30k-gru", "", "")


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    metrics = measures({"exact": 0.5, "cer": float("nan"), "bleu": float("inf")}, {"bleu": "tok:13a"})
    append_record(tmp_path, record(metrics=metrics))
    assert "NaN" not in (tmp_path / RESULTS).read_text()
    (loaded,) = read_records(tmp_path)
    assert (loaded.score("exact").value, loaded.score("cer"), loaded.score("bleu")) == (0.5, None, None)
    assert loaded.score("chrf") is None


def test_a_record_after_a_truncated_one_is_not_lost(tmp_path: Path) -> None:
    append_record(tmp_path, RECORD)
    path = tmp_path / RESULTS
    path.write_bytes(path.read_bytes()[:-20])
    append_record(tmp_path, RECORD)
    with pytest.raises(InputError, match=r"line 1"):
        read_records(tmp_path)
    path.write_text(path.read_text().split("\n", 1)[1])
    assert read_records(tmp_path) == [RECORD]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipes": "x"}, "line 2.*recipes"),
        ({"seed": "zero"}, "line 2.*seed"),
        ({"metrics": [{"name": "bleu", "value": 1.0}] * 2}, "line 2.*metrics"),
        ({"metrics": [{"name": "bleu"}]}, r"line 2.*metrics\.value"),
        ({"by_length": [{"least": 1, "most": None, "pairs": 3}]}, r"line 2.*by_length\.bleu"),
    ],
)
def test_an_invalid_record_is_reported_with_its_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    append_record(tmp_path, RECORD)
    with (tmp_path / RESULTS).open("a") as file:
        file.write(json.dumps(asdict(RECORD) | change) + "\n")
    with pytest.raises(InputError, match=message):
        read_records(tmp_path)


@pytest.mark.parametrize("line", ["[]", "3", '{"recipe": NaN}', '{"recipe"', "[" * 100_000, "\udcff"])
def test_malformed_lines_are_input_errors(tmp_path: Path, line: str) -> None:
    (tmp_path / RESULTS).write_text(line, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match="line 1"):
        read_records(tmp_path)


def test_a_folder_without_results_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="qkv evaluate"):
        read_records(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_records(tmp_path / "none")
    (tmp_path / RESULTS).write_text("\n")
    with pytest.raises(InputError, match="empty"):
        read_records(tmp_path)

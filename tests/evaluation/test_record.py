"""Records: what is written is what is read, and what cannot be read says where and why."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from qkv.errors import InputError
from qkv.evaluation.record import RESULTS, append, measures, read
from qkv.metrics import Score

from .records import RECORD, record


def test_what_is_appended_is_read_again_oldest_first(tmp_path: Path) -> None:
    written = [RECORD, record(seed=1, by_length=(), changes=("model.score=dot",)), record(seed=2, commit="")]
    for one in written:
        assert append(tmp_path, one) == tmp_path / RESULTS
    assert read(tmp_path) == written


def test_a_record_of_before_training_was_described_is_read(tmp_path: Path) -> None:
    later = ("precision", "graphs", "trained_torch", "trained_commit", "trained_source_hash", "shipped")
    old = {name: value for name, value in asdict(RECORD).items() if name not in later}
    (tmp_path / RESULTS).write_text(json.dumps(old | {"trained_on": ""}) + "\n")
    (found,) = read(tmp_path)
    assert (found.recipe, found.trained_on, found.trained_commit, found.shipped) == ("multi30k-gru", "", "", True)


def test_a_number_that_is_none_is_written_as_null(tmp_path: Path) -> None:
    kept = measures({"exact": Score(0.5), "cer": Score(float("nan")), "bleu": Score(float("inf"), "tok:13a")})
    append(tmp_path, record(metrics=kept))
    assert "NaN" not in (tmp_path / RESULTS).read_text()
    (found,) = read(tmp_path)
    assert (found.score("exact").value, found.score("cer"), found.score("bleu")) == (0.5, None, None)
    assert found.score("chrf") is None


def test_a_record_after_one_that_was_cut_short_is_not_lost_with_it(tmp_path: Path) -> None:
    append(tmp_path, RECORD)
    path = tmp_path / RESULTS
    path.write_bytes(path.read_bytes()[:-20])
    append(tmp_path, RECORD)
    with pytest.raises(InputError, match=r"results.jsonl: line 1 is cut short or not JSON: remove it"):
        read(tmp_path)
    path.write_text(path.read_text().split("\n", 1)[1])
    assert read(tmp_path) == [RECORD]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipes": "x"}, r"line 2: unknown key recipes \(did you mean recipe\?\)"),
        ({"seed": "zero"}, "line 2: seed must be an integer, not 'zero'"),
        ({"metrics": [{"name": "bleu", "value": 1.0}] * 2}, "line 2: metrics names a metric twice"),
        ({"metrics": [{"name": "bleu"}]}, "line 2: missing key metrics.value"),
        ({"by_length": [{"least": 1, "most": None, "pairs": 3}]}, "line 2: missing key by_length.bleu"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    append(tmp_path, RECORD)
    with (tmp_path / RESULTS).open("a") as file:
        file.write(json.dumps(asdict(RECORD) | change) + "\n")
    with pytest.raises(InputError, match=words):
        read(tmp_path)


@pytest.mark.parametrize("line", ["[]", "3", '{"recipe": NaN}', '{"recipe"', "[" * 100_000, "\udcff"])
def test_whatever_else_a_line_holds_is_an_input_error(tmp_path: Path, line: str) -> None:
    (tmp_path / RESULTS).write_text(line, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match="line 1"):
        read(tmp_path)


def test_a_folder_without_results_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing was measured there .*: run qkv evaluate .* first"):
        read(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read(tmp_path / "none")
    (tmp_path / RESULTS).write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read(tmp_path)

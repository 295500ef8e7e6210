"""The published results: docs/results.md is made from the records in docs/runs."""

import json
import re
from pathlib import Path

import pytest

from qkv.experiments.results import RESULTS, Record, read_records
from qkv.experiments.table import markdown, newest, tables
from qkv.training.recipe import recipe_names

DOCS = Path(__file__).parents[2] / "docs"
RUNS = sorted((DOCS / "runs").iterdir())
COMMAND = "qkv compare docs/runs/* --output docs/results.md"
ABSOLUTE_PATH = re.compile(r"""(^|[\s"'=\[,])(/|~|[A-Za-z]:\\)""")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [record for run in RUNS for record in read_records(run)]


def test_the_page_is_made_from_the_records(records: list[Record]) -> None:
    assert (DOCS / "results.md").read_text(encoding="utf-8") == markdown(tables(records), COMMAND)


def test_every_record_is_shown_and_has_its_provenance(records: list[Record]) -> None:
    assert len(newest(records)) == len(records)
    assert all(record.commit and record.metrics for record in records)
    runs = [record for record in records if not record.command]
    assert {record.recipe for record in runs} <= set(recipe_names())
    assert all(record.trained_on and record.trained_commit for record in runs)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_records_contain_no_absolute_path(run: Path) -> None:
    for line in (run / RESULTS).read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        texts = [*fields["changes"], *(value for value in fields.values() if isinstance(value, str))]
        assert not [text for text in texts if ABSOLUTE_PATH.search(text)]


@pytest.mark.parametrize("text", ['init="/home/me/run"', "/tmp/run", "~/run", 'data.train=["/a"]', r'init="C:\run"'])
def test_absolute_paths_are_found(text: str) -> None:
    assert ABSOLUTE_PATH.search(text)

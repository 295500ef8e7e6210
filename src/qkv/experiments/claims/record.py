"""Records of claims: one JSON file per claim and scale, with all numbers behind the verdict."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qkv.config import build
from qkv.experiments.claims.claim import SCALES, Scale
from qkv.experiments.claims.measurements import Measurements, Table
from qkv.experiments.claims.verdict import CriterionResult, Verdict
from qkv.runtime import provenance
from qkv.runtime.documents import parse_object, read_text
from qkv.runtime.files import write_atomically

RECORDS = "records"  # folder of records, in the output folder
MAX_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ClaimRecord:
    """One measurement of a claim: numbers, criteria and verdict, and how they were obtained."""

    claim: str  # id
    number: int
    scale: Scale
    verdict: Verdict
    results: tuple[CriterionResult, ...]  # with the range of each criterion
    measurements: Measurements
    seconds: float  # of measuring, and of the processes of all training runs, added up
    command: str
    device: str
    torch: str
    version: str
    commit: str  # "" outside a checkout
    source_hash: str
    date: str
    tables: tuple[Table, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.claim}-{self.scale}.json"


def write_record(folder: Path, record: ClaimRecord) -> Path:
    """Write a record to a folder, atomically."""
    path = folder / record.file_name
    text = json.dumps(asdict(record), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(path, f"{_join_numbers(text)}\n".encode())
    return path


def read_record(path: Path) -> ClaimRecord:
    """Read a record; raise InputError if it is not complete."""
    return build(ClaimRecord, parse_object(read_text(path, MAX_BYTES), path), str(path))


def read_records(folder: Path) -> list[ClaimRecord]:
    """Return the records of a folder by number; none if the folder does not exist."""
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    return sorted(records, key=lambda record: (record.number, record.claim, SCALES.index(record.scale)))


def shipped_records() -> Path:
    """Return the folder of the records in the checkout; it does not exist elsewhere."""
    return provenance.PACKAGE.parent.parent / "docs" / "claims" / RECORDS


def newest(records: Sequence[ClaimRecord]) -> dict[str, ClaimRecord]:
    """Return the newest record of each claim."""
    return {record.claim: record for record in sorted(records, key=lambda record: record.date)}


def _join_numbers(text: str) -> str:
    """Write lists of numbers on one line each."""
    return re.sub(r'\[\s+([^][{}"]*?)\s+\]', lambda match: f"[{' '.join(match[1].split())}]", text)

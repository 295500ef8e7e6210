"""Run claims: measure, judge, write the record and the figure."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from qkv import __version__
from qkv.errors import InputError
from qkv.experiments.claims.claim import Claim, Scale
from qkv.experiments.claims.figure import save_claim_figure
from qkv.experiments.claims.record import RECORDS, ClaimRecord, write_record
from qkv.experiments.claims.verdict import judge
from qkv.registry import registered, unknown
from qkv.runtime import provenance
from qkv.runtime.device import pick_device

FIGURES, WORK = "figures", "work"  # in the output folder: figures, and the training runs of sweeps


class ClaimRun(NamedTuple):
    """The record of a claim, and the files written for it."""

    record: ClaimRecord
    record_path: Path
    figure_path: Path


def all_claims() -> list[type[Claim]]:
    """Return all registered claims, by number."""
    return sorted(set(registered("claim").values()), key=lambda claim: (claim.number, claim.registered_name))


def find_claim(name: str) -> type[Claim]:
    """Return a claim by its id or number; an unknown id raises InputError with the nearest one."""
    claims = registered("claim")
    if name in claims:
        return claims[name]
    numbered = [claim for claim in claims.values() if str(claim.number) == name]
    if not numbered:
        raise InputError(unknown("claim", name))
    return numbered[0]


def run_claim(
    claim: type[Claim], scale: Scale = "small", seeds: int | None = None, folder: Path = Path("runs/claims"),
    device: str = "auto",
) -> ClaimRun:  # fmt: skip
    """Measure a claim and write its record and figure; raise InputError if there can be no verdict."""
    count = claim.seeds if seeds is None else seeds
    name = f"{claim.registered_name}-{scale}"
    if count < claim.min_seeds(scale):
        raise InputError(f"{claim.registered_name}: needs at least {claim.min_seeds(scale)} seeds, not {count}")
    began = time.monotonic()
    try:
        measurements = claim().measure(scale, range(count), folder / WORK / name, device)
        verdict, results = judge(claim.criteria, measurements, claim.min_seeds(scale))
    except InputError as error:
        raise InputError(f"{claim.registered_name}: {error}") from error
    record = ClaimRecord(
        claim=claim.registered_name,
        number=claim.number,
        scale=scale,
        verdict=verdict,
        results=tuple(results),
        measurements=measurements,
        seconds=round(time.monotonic() - began, 1),
        command=command(claim, scale, seeds),
        device=provenance.device_name(pick_device(device)),
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        tables=claim.tables(measurements),
    )
    path = write_record(folder / RECORDS, record)
    return ClaimRun(record, path, save_claim_figure(claim, measurements, folder / FIGURES / f"{name}.png"))


def command(claim: type[Claim], scale: Scale, seeds: int | None = None) -> str:
    """Return the command line that runs a claim."""
    options = [] if seeds is None else [f"--seeds {seeds}"]
    return " ".join(["qkv claims run", claim.registered_name, f"--scale {scale}", *options])

"""Run claims: measure, judge, write the record and the figure."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qkv import __version__
from qkv.errors import InputError
from qkv.experiments.claims.claim import Claim, Scale
from qkv.experiments.claims.figure import save_claim_figure
from qkv.experiments.claims.pool import ClaimWork, run_work
from qkv.experiments.claims.record import RECORDS, ClaimRecord, write_record
from qkv.experiments.claims.sample_job import saved_measurements
from qkv.experiments.claims.verdict import judge
from qkv.registry import registered, unknown
from qkv.runtime import provenance
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.device import pick_device

FIGURES, WORK = "figures", "work"  # in the output folder: figures, and the training runs of each scale


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
    if not numbered and name.isdecimal():
        last = max(claim.number for claim in claims.values())
        raise InputError(f"there is no claim {name}: the claims are numbered from 1 to {last}")
    if not numbered:
        raise InputError(unknown("claim", name))
    return numbered[0]


@dataclass(frozen=True)
class RunOptions:
    """How claims are run."""

    scale: Scale = "small"
    seeds: int | None = None  # number of seeds [that of the claim]
    first_seed: int = 0
    folder: Path = Path("runs/claims")
    device: str = "auto"
    workers: WorkerOptions = field(default_factory=WorkerOptions)

    def seeds_of(self, claim: type[Claim]) -> range:
        """Return the seeds of a claim; raise InputError if they are too few for a verdict."""
        count = claim.seeds if self.seeds is None else self.seeds
        if count < claim.min_seeds(self.scale):
            least = claim.min_seeds(self.scale)
            raise InputError(f"{claim.registered_name}: needs at least {least} seeds, not {count}")
        return range(self.first_seed, self.first_seed + count)


Report = Callable[[type[Claim], ClaimRun | InputError], None]


def run_claims(claims: Sequence[type[Claim]], options: RunOptions, report: Report) -> None:
    """Measure claims, write their records and figures, and report each; one that fails does not end the others.

    Training runs, and claims whose seeds have a process each, are run side by side. Claims that need the machine for
    themselves follow, one at a time.
    """
    folder = (options.folder / WORK / options.scale).absolute()
    works, loaded = [], dict[str, tuple[Any, Any]]()
    for claim in claims:
        try:
            work = ClaimWork(claim, options.scale, options.seeds_of(claim), folder)
            work.prepare(loaded)
        except InputError as error:
            report(claim, _named(claim, error))
            continue
        works.append(work)
    loaded.clear()
    exclusive: list[ClaimWork] = []

    def ready(work: ClaimWork) -> None:
        if work.claim.exclusive and not work.samples:
            exclusive.append(work)
        else:
            report(work.claim, _judged(work, options))

    pooled = [work for work in works if work.names]
    run_work(pooled, folder, options.workers, options.device, ready)
    for work in [work for work in works if work in exclusive or not work.names]:
        report(work.claim, _judged(work, options))


def run_claim(
    claim: type[Claim], scale: Scale = "small", seeds: int | None = None, folder: Path = Path("runs/claims"),
    device: str = "auto",
) -> ClaimRun:  # fmt: skip
    """Measure a claim and write its record and figure; raise InputError if there can be no verdict."""
    outcomes: list[ClaimRun | InputError] = []
    options = RunOptions(scale, seeds, folder=folder, device=device)
    run_claims([claim], options, lambda _, outcome: outcomes.append(outcome))
    (outcome,) = outcomes
    if isinstance(outcome, InputError):
        raise outcome
    return outcome


def _judged(work: ClaimWork, options: RunOptions) -> ClaimRun | InputError:
    """Measure, judge, and write the record and the figure; return the error if there can be no verdict."""
    claim, scale, began = work.claim, work.scale, time.monotonic()
    try:
        work.check()
        if work.samples:
            measurements, seconds = saved_measurements(work.samples)
        else:
            measurements, seconds = claim().measure(scale, work.seeds, work.folder, options.device), 0.0
        verdict, results = judge(claim.criteria, measurements, claim.min_seeds(scale))
    except InputError as error:
        return _named(claim, error)
    record = ClaimRecord(
        claim=claim.registered_name,
        number=claim.number,
        scale=scale,
        verdict=verdict,
        results=tuple(results),
        measurements=measurements,
        seconds=round(time.monotonic() - began + seconds + work.training_seconds, 1),
        command=command(claim, scale, options.seeds, options.first_seed),
        device=provenance.device_name(pick_device(options.device)),
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        tables=claim.tables(measurements),
    )
    path = write_record(options.folder / RECORDS, record)
    figure = options.folder / FIGURES / f"{claim.registered_name}-{scale}.png"
    return ClaimRun(record, path, save_claim_figure(claim, record, figure))


def _named(claim: type[Claim], error: InputError) -> InputError:
    """Return an error with the id of the claim."""
    name = claim.registered_name
    return error if str(error).startswith(f"{name}: ") else InputError(f"{name}: {error}")


def command(claim: type[Claim], scale: Scale, seeds: int | None = None, first_seed: int = 0) -> str:
    """Return the command line that runs a claim."""
    options = [] if seeds is None else [f"--seeds {seeds}"]
    options += [f"--first-seed {first_seed}"] if first_seed else []
    return " ".join(["qkv claims run", claim.registered_name, f"--scale {scale}", *options])

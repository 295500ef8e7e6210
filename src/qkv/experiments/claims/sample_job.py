"""Samples of claims in processes of their own: one job per seed, with its result in a file."""

import json
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.config import build
from qkv.errors import InputError, QkvError
from qkv.experiments.claims.claim import SampledClaim, Scale
from qkv.experiments.claims.measurements import Measurements, Sample, merge
from qkv.experiments.sweep_workers import Status, read_status
from qkv.registry import load_plugins, loaded_plugins, lookup, names_in_main
from qkv.runtime import provenance
from qkv.runtime.documents import read_object
from qkv.runtime.files import write_atomically


@dataclass(frozen=True)
class SavedSample:
    """The numbers of one seed, as they are stored: curves are lists of [x, y]."""

    values: dict[str, float]
    series: dict[str, list[tuple[float, float]]]
    seconds: float
    source_hash: str  # of the code that measured them


@dataclass(frozen=True)
class SampleJob:
    """One seed of a claim as plain data, which is sent to the process that measures it."""

    claim: str
    scale: Scale
    seed: int
    folder: Path
    plugins: tuple[Path | str, ...]
    directory: Path  # that relative paths start from
    uses_main: bool
    device: str = "cpu"
    threads: int = 1

    @classmethod
    def of(cls, claim: type[SampledClaim], scale: Scale, seed: int, folder: Path) -> "SampleJob":
        """Return the job of one seed."""
        name, uses_main = claim.registered_name, claim.registered_name in names_in_main()
        return cls(name, scale, seed, folder, tuple(loaded_plugins()), Path.cwd(), uses_main)

    @property
    def name(self) -> str:
        return f"{self.claim}-{self.seed}"

    def run(self) -> bool:
        """Measure and write the numbers; return whether it did not fail."""
        os.environ["OMP_NUM_THREADS"] = str(self.threads)  # of kernels that are loaded later
        torch.set_num_threads(self.threads)
        os.chdir(self.directory)
        began = time.monotonic()
        self._write_status(Status(0.0, "measuring"))
        try:
            load_plugins(self.plugins)
            sample = lookup("claim", self.claim)().sample_of(self.scale, self.seed, self.device)
        except Exception as error:
            traceback.print_exc()
            message = str(error) if isinstance(error, QkvError) else f"{type(error).__name__}: {error}"
            self._write_status(Status(error=message))
            return False
        series = {name: [(float(x), float(y)) for x, y in curve.items()] for name, curve in sample.series.items()}
        values = {name: float(value) for name, value in sample.values.items()}
        saved = SavedSample(values, series, time.monotonic() - began, provenance.source_hash())
        write_atomically(_path(self.folder, self.name), json.dumps(asdict(saved)).encode())
        self._write_status(Status(1.0, "measured"))
        return True

    def _write_status(self, status: Status) -> None:
        write_atomically(self.folder / "output" / f"{self.name}.json", json.dumps(asdict(status)).encode())


def saved_sample(job: SampleJob) -> SavedSample | None:
    """Return the numbers of a job; None if it was not run, or with other code."""
    path = _path(job.folder, job.name)
    saved: SavedSample | None = build(SavedSample, read_object(path), str(path)) if path.exists() else None
    return saved if saved is not None and saved.source_hash == provenance.source_hash() else None


def saved_measurements(jobs: Sequence[SampleJob]) -> tuple[Measurements, float]:
    """Return the numbers of all seeds of a claim, and the seconds that they took; raise InputError if one failed."""
    samples: dict[int, Sample] = {}
    seconds = 0.0
    for job in jobs:
        saved = saved_sample(job)
        if saved is None:
            raise InputError(f"seed {job.seed}: {read_status(job.folder, job.name).error or 'was not measured'}")
        curves: dict[str, Any] = {name: dict(points) for name, points in saved.series.items()}
        samples[job.seed] = Sample(saved.values, curves)
        seconds += saved.seconds
    return merge(samples), seconds


def _path(folder: Path, name: str) -> Path:
    return folder / "samples" / f"{name}.json"

"""Training runs and samples of several claims in one pool of processes; runs that claims have in common are shared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import InputError
from qkv.experiments.claims.claim import Claim, SampledClaim, Scale
from qkv.experiments.claims.sample_job import SampleJob, saved_sample
from qkv.experiments.sweep import Sweep, trial_jobs
from qkv.experiments.sweep_display import SweepDisplay
from qkv.experiments.sweep_workers import Job, run_jobs
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.files import exclusive_lock, name_output_errors


@dataclass(eq=False)
class ClaimWork:
    """What has to be computed for a claim in processes of their own."""

    claim: type[Claim]
    scale: Scale
    seeds: Sequence[int]
    folder: Path  # of the runs and samples of all claims of this scale
    sweeps: list[Sweep] = field(default_factory=list)
    samples: list[SampleJob] = field(default_factory=list)

    def prepare(self, loaded: dict[str, tuple[Any, Any]]) -> None:
        """List the work; raise InputError if data are missing or a recipe is not valid."""
        self.sweeps = list(self.claim.sweeps(self.scale, self.seeds).values())
        for sweep in self.sweeps:
            sweep.check_models(sweep.remaining(self.folder), loaded)
        if issubclass(self.claim, SampledClaim) and self.claim.seeds_in_processes:
            self.samples = [SampleJob.of(self.claim, self.scale, seed, self.folder) for seed in self.seeds]

    @property
    def names(self) -> set[str]:
        """Names of all jobs, finished or not."""
        return {trial.name for sweep in self.sweeps for trial in sweep.trials} | {job.name for job in self.samples}

    def unfinished_samples(self) -> list[SampleJob]:
        """Return the samples that are not measured yet."""
        return [job for job in self.samples if saved_sample(job) is None]

    def check(self) -> None:
        """Raise InputError with the first error of a run."""
        for sweep in self.sweeps:
            if failures := sweep.result(self.folder).failures:
                first = failures[0]
                raise InputError(f"{len(failures)} run(s) failed, first {first.trial.name}: {first.error}")

    @property
    def training_seconds(self) -> float:
        """Seconds of all training runs, added up."""
        return sum(run.seconds for sweep in self.sweeps for run in sweep.result(self.folder).outcomes)


class PoolDisplay(SweepDisplay):
    """Shows the progress of all jobs, and calls `ready` for each claim whose last job has ended."""

    ready: Callable[[ClaimWork], None]
    waiting: list[tuple[ClaimWork, set[str]]]

    def finished(self, name: str) -> None:
        super().finished(name)
        for _, names in self.waiting:
            names.discard(name)
        done = [work for work, names in self.waiting if not names]
        self.waiting = [(work, names) for work, names in self.waiting if names]
        for work in done:
            self.ready(work)


def run_work(
    works: Sequence[ClaimWork], folder: Path, workers: WorkerOptions, device: str, ready: Callable[[ClaimWork], None]
) -> None:
    """Run the jobs of all claims, in their order, and call `ready` for each claim as soon as its jobs have ended."""
    with name_output_errors(folder):
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder):
        trials = {job.name: job for job in trial_jobs([sweep for work in works for sweep in work.sweeps], folder)}
        jobs: dict[str, Job] = {}
        for work in works:
            jobs |= {name: trials[name] for sweep in work.sweeps for name in _names(sweep) if name in trials}
            jobs |= {job.name: job for job in work.unfinished_samples()}
        names = {name: None for work in works for name in sorted(work.names)}
        display = PoolDisplay(folder, list(names), [name for name in names if name not in jobs], title="claims")
        display.ready = ready
        display.waiting = [(work, work.names & jobs.keys()) for work in works]
        for work in [work for work, missing in display.waiting if not missing]:
            ready(work)
        display.waiting = [(work, missing) for work, missing in display.waiting if missing]
        if jobs:
            with display:
                run_jobs(list(jobs.values()), workers, device, display)


def _names(sweep: Sweep) -> list[str]:
    return [trial.name for trial in sweep.trials]

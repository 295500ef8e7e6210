"""Sweeps: train every combination of some values of a recipe with several seeds, and measure each run.

    sweep = Sweep("dates-gru", {"model.score.name": ["dot", "additive"]}, seeds=range(3))
    result = sweep.run(Path("runs/scores"))
    for row in result.rows("exact"):
        print(row.label, row.mean, row.interval, row.p)

All runs of a sweep have the same data, seeds and training settings, other than the factors. A sweep that was killed
continues if it is run again with the same folder: finished runs are kept, unfinished ones resume from their newest
checkpoint. Values can be added in the same way.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from qkv.config import Term
from qkv.datasets.dataset import Dataset
from qkv.errors import InputError, QkvError
from qkv.experiments.evaluation import evaluate_split
from qkv.experiments.results import record_evaluation
from qkv.experiments.sweep_display import SweepDisplay
from qkv.experiments.sweep_stats import SummaryRow, rows_of
from qkv.experiments.sweep_workers import TrialJob, read_status, run_jobs
from qkv.generation import GenerationConfig
from qkv.hub import load
from qkv.hub.meta_model import meta_model
from qkv.metrics import Metric
from qkv.registry import lookup
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.documents import read_object
from qkv.runtime.files import check_output_folder, exclusive_lock, name_output_errors
from qkv.runtime.text import printable
from qkv.training.finetune import load_pretrained, pretrained_config
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.run import Run
from qkv.training.run_manifest import MANIFEST, Manifest, differences, flat

RECIPE = "recipe"  # a factor that varies the recipe itself
MAX_TRIALS = 1000
# Keys of a recipe that do not change what is trained.
NOT_COMPARED = ("name", "overrides", "requires_init", "from_scratch", "data.folder")

MeasureFunction = Callable[[Run, str], Mapping[str, float]]  # of a finished run and a device; can be pickled


@dataclass(frozen=True)
class Evaluate:
    """Scores of a run on a split, recorded in its results.jsonl."""

    split: str = "valid"

    def __call__(self, run: Run, device: str) -> Mapping[str, float]:
        recipe, data = run.recipe, run.data()
        self.check(recipe, data)
        model = load(run.folder, device=device)
        task = recipe.task_class.for_evaluation(data, model, recipe.task, recipe.train, recipe.seed)
        evaluation = evaluate_split(task, model, data, self.split, GenerationConfig())
        record_evaluation(run, model, data, self.split, evaluation, GenerationConfig())
        return evaluation.scores

    def check(self, recipe: Recipe, data: Dataset[Any]) -> None:
        """Raise if the data do not have the split."""
        splits = recipe.task_class.splits(data)
        if self.split not in splits:
            raise InputError(f"no {printable(self.split)} split (available: {', '.join(splits)})")


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    name: str  # of its folder
    label: str  # of its combination of values
    settings: Mapping[str, str]  # the value of each factor
    assignments: tuple[str, ...]  # that make it from the recipe
    recipe: Recipe


@dataclass(frozen=True)
class TrialResult:
    """The measured scores of a trial, or the error that ended it; neither if it was interrupted."""

    trial: Trial
    scores: Mapping[str, float]
    parameters: int = 0
    minutes: float = 0.0  # of training
    seconds: float = 0.0  # of its process, with measuring
    error: str = ""

    @property
    def seed(self) -> int:
        return self.trial.recipe.seed


@dataclass(frozen=True)
class SweepResult:
    """The outcomes of all trials, in the order of the combinations and seeds."""

    outcomes: Sequence[TrialResult]

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The measured metrics; the one that selects checkpoints is the first."""
        first = self.outcomes[0].trial.recipe
        task = first.task_class
        titles = {**task.metrics, **task.test_metrics}
        names = dict.fromkeys(name for outcome in self.outcomes for name in outcome.scores)
        ordered = sorted(names, key=lambda name: name != first.train.best_by)
        return {name: titles.get(name, Metric(name)) for name in ordered}

    @property
    def failures(self) -> list[TrialResult]:
        """The trials that ended with an error."""
        return [outcome for outcome in self.outcomes if outcome.error]

    def rows(self, metric: str, confidence: float = 0.95) -> list[SummaryRow]:
        """Return one row per combination, with its mean, interval, and test against the first combination."""
        groups: dict[str, list[TrialResult]] = {}
        for outcome in self.outcomes:
            groups.setdefault(outcome.trial.label, []).append(outcome)
        return rows_of(groups, metric, confidence)


@dataclass(frozen=True)
class Sweep:
    """A recipe, the values of some of its keys, and seeds: every combination is trained with every seed."""

    recipe: str
    factors: Mapping[str, Sequence[str]]  # values as in --set, by key; "recipe" varies the recipe
    seeds: Sequence[int] = (0, 1, 2)
    overrides: Sequence[str] = ()  # --set assignments of all runs
    measure: MeasureFunction = Evaluate()
    shared: bool = False  # name runs by their settings, so that the sweeps of a folder share equal ones

    @cached_property
    def trials(self) -> list[Trial]:
        """All runs, in the order of the values; raise InputError with the name of a combination that is not valid."""
        self._check()
        combinations = [dict(zip(self.factors, values, strict=True)) for values in product(*self.factors.values())]
        trials = [self._trial(settings, seed) for settings in combinations for seed in self.seeds]
        if len({trial.name for trial in trials}) < len(trials):  # values that differ in special characters only
            trials = [replace(trial, name=f"{number}-{trial.name}") for number, trial in enumerate(trials)]
        return trials

    def run(
        self, folder: Path, workers: WorkerOptions | None = None, device: str = "auto", *, force: bool = False
    ) -> SweepResult:
        """Train and measure all runs that are not finished; runs that fail do not end the others.

        The folder has the training runs in runs/ and the messages of each run in output/. All combinations are checked
        before the first one is trained. `force` skips the memory check.
        """
        trials, folder = self.trials, folder.absolute()
        if not (folder / "runs").is_dir():
            check_output_folder(folder)
        with name_output_errors(folder):
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder):
            remaining = self.remaining(folder)
            self.check_models(remaining, {})
            jobs = trial_jobs([self], folder, force=force)
            done = {trial.name for trial in trials} - {trial.name for trial in remaining}
            with SweepDisplay(folder, [trial.name for trial in trials], done) as display:
                run_jobs(jobs, workers or WorkerOptions(), device, display)
            return self.result(folder)

    def remaining(self, folder: Path) -> list[Trial]:
        """Return the trials without a result; raise if the folder of one holds a run with other settings."""
        return [trial for trial in self.trials if not self._is_measured(trial, folder)]

    def result(self, folder: Path) -> SweepResult:
        """Return the results in a folder, without running anything."""
        return SweepResult([self._outcome(trial, folder) for trial in self.trials])

    @property
    def measure_name(self) -> str:
        """The key of the results of a measure, so that a run can be measured in several ways."""
        return getattr(self.measure, "__qualname__", None) or repr(self.measure)

    def _check(self) -> None:
        if not self.factors or not self.seeds:
            raise InputError("a sweep needs at least one key with values, and one seed")
        for key, values in self.factors.items():
            if not values or len(set(values)) < len(values):
                raise InputError(f"--vary {printable(key)}: {'has a value twice' if values else 'has no values'}")
        keys = [*self.factors, *(assignment.partition("=")[0].strip() for assignment in self.overrides)]
        if "seed" in keys:
            raise InputError("seed: the seeds of a sweep are chosen with --seeds, not with --set or --vary")
        if both := [key for key in self.factors if keys.count(key) > 1]:
            raise InputError(f"{printable(both[0])}: is varied and set: remove one of them")
        count = len(self.seeds)
        for values in self.factors.values():
            count *= len(values)
        if count > MAX_TRIALS:
            raise InputError(f"the sweep has {count:,} runs, more than {MAX_TRIALS:,}: vary fewer values")

    def _trial(self, settings: Mapping[str, str], seed: int) -> Trial:
        label = ", ".join(f"{key}={value}" for key, value in zip(self._short_keys, settings.values(), strict=True))
        changes = [f"{key}={value}" for key, value in settings.items() if key != RECIPE]
        assignments = (*self.overrides, *changes, f"seed={seed}")
        try:
            recipe = read_recipe(settings.get(RECIPE, self.recipe), assignments)
        except InputError as error:
            varied = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise InputError(f"--vary {printable(varied)}: {error}") from None
        name = f"{_file_name(label)}-{seed}"
        if self.shared:
            name = f"{_file_name(recipe.name)}-{_settings_hash(recipe)}-{seed}"
        return Trial(name, label, settings, assignments, recipe)

    @cached_property
    def _short_keys(self) -> list[str]:
        """The last part of each key, without `.name`; the whole key if that is ambiguous."""
        short = [key.removesuffix(".name").rpartition(".")[2] for key in self.factors]
        return [name if short.count(name) == 1 else key for name, key in zip(short, self.factors, strict=True)]

    def _is_measured(self, trial: Trial, folder: Path) -> bool:
        """Return whether a trial is complete; raise if its folder holds a run with other settings."""
        run = folder / "runs" / trial.name
        if not (run / MANIFEST).exists():
            return False
        old, new = (_compared(recipe) for recipe in (Manifest.read(run).recipe, trial.recipe))
        if old != new:
            changed = ", ".join(list(differences(old, new))[:3])
            raise InputError(f"{run}: holds a run with other settings: {changed}; choose another --output")
        return self.measure_name in _results(folder, trial)

    def _outcome(self, trial: Trial, folder: Path) -> TrialResult:
        if (result := _results(folder, trial).get(self.measure_name)) is not None:
            return TrialResult(trial, **result)
        return TrialResult(trial, {}, error=read_status(folder, trial.name).error)

    def check_models(self, trials: Sequence[Trial], loaded: dict[str, tuple[Any, Any]]) -> None:
        """Load the data, and build each model on the meta device; raise with the name of a combination that fails.

        `loaded` keeps datasets and tokenizers for further calls.
        """
        checked = set[str]()
        for trial in trials:
            if trial.label in checked:
                continue
            checked.add(trial.label)
            try:
                self._check_model(trial.recipe, loaded)
            except (QkvError, ValueError, TypeError) as error:
                raise InputError(f"{printable(trial.label)}: {error}") from error

    def _check_model(self, recipe: Recipe, loaded: dict[str, tuple[Any, Any]]) -> None:
        task, pretrained = recipe.task_class, load_pretrained(recipe)
        key = repr((recipe.data, task, pretrained is None and getattr(recipe.model, "max_characters", None)))
        if key not in loaded:
            data = recipe.data.load()
            own = task.train_tokenizer(data, recipe.data, recipe.model) if pretrained is None else None
            loaded[key] = data, own
        data, tokenizer = loaded[key]
        if isinstance(self.measure, Evaluate):
            self.measure.check(recipe, data)
        if pretrained is None:
            config = recipe.model.replace(**task.sizes(data, tokenizer))
        else:
            config = pretrained_config(recipe, pretrained, task.sizes(data, pretrained.tokenizer))
        meta_model(lookup("model", recipe.model.registered_name), config, "model")


def trial_jobs(sweeps: Sequence[Sweep], folder: Path, *, force: bool = False) -> list[TrialJob]:
    """Return a job for each trial without a result; one that several sweeps share is measured for all of them."""
    trials: dict[str, Trial] = {}
    measures: dict[str, dict[str, MeasureFunction]] = {}
    for sweep in sweeps:
        for trial in sweep.remaining(folder):
            trials.setdefault(trial.name, trial)
            measures.setdefault(trial.name, {})[sweep.measure_name] = sweep.measure
    return [TrialJob.of(trial, folder, measures[name], force=force) for name, trial in trials.items()]


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.+-]+", "_", text)[:100]


def _settings_hash(recipe: Recipe) -> str:
    """Return a hash of what a recipe trains, other than the seed."""
    settings = {key: value for key, value in _compared(recipe).items() if key != "seed"}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _compared(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe trains, by dotted key, without the options of terms that have their default value."""
    settings = {
        key: value for key, value in flat(recipe.to_dict()).items() if key not in NOT_COMPARED and value is not None
    }
    for field, term in recipe.model:
        if isinstance(term, Term):
            settings[f"model.{field}"] = term.name
            settings.pop(f"model.{field}.name", None)
            defaults = {name: option.default for name, option in term.options_class.model_fields.items()}
            for name, value in term.options.items():
                if name in defaults and value == defaults[name]:
                    settings.pop(f"model.{field}.{name}", None)
    return settings


def _results(folder: Path, trial: Trial) -> dict[str, dict[str, Any]]:
    path = folder / "results" / f"{trial.name}.json"
    return read_object(path) if path.exists() else {}

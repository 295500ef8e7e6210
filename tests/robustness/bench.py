"""Run the command line on damaged inputs, each in a sandbox, and report every violated requirement.

python -m tests.robustness.bench --cases 1500     # the first 1,500 cases
python -m tests.robustness.bench --case 17        # one of them again; its sandbox is kept
python -m tests.robustness.bench --sample         # the cases of the normal test suite
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from shlex import join

from tests.robustness import checks, process
from tests.robustness.mutators import MUTATORS, Target, prepare_output
from tests.robustness.sandbox import Sandbox, Snapshot
from tests.robustness.scenarios import SCENARIOS, Scenario
from tests.robustness.subjects import Subjects

SEED = 0
SHARES = {"model": 500, "data": 450, "run": 350, "output": 200}  # of the first 1,500 cases
SAMPLE = 32
QUICK = ("own/rnn_seq2seq", "run/rnn_seq2seq", "own/bert_classifier", "interrupted", "texts/")  # of the sample


def plan(seed: int) -> list[tuple[Scenario, str]]:
    """Every scenario with every mutation, shuffled so that every prefix has the same proportion of groups."""
    groups: dict[str, list[tuple[Scenario, str]]] = defaultdict(list)
    for scenario in SCENARIOS:
        groups[scenario.group] += [(scenario, mutation) for mutation in scenario.mutations] * scenario.repeat
    placed = []
    for group, pairs in groups.items():
        Random(f"{seed} {group}").shuffle(pairs)
        placed += [((number + 0.5) / SHARES[group], pair) for number, pair in enumerate(pairs)]
    return [pair for _, pair in sorted(placed, key=lambda one: one[0])]


def sample(seed: int) -> list[int]:
    """The numbers of a few cases of each group, whose subjects are built quickly."""
    quick: dict[str, list[int]] = defaultdict(list)
    for number, (scenario, _) in enumerate(plan(seed)):
        if scenario.subject.startswith(QUICK):
            quick[scenario.group].append(number)
    return sorted(number for numbers in quick.values() for number in numbers[: SAMPLE // len(SHARES)])


@dataclass
class CaseResult:
    """The result of a case."""

    number: int
    group: str
    scenario: str
    mutation: str
    done: str  # description of the mutation
    command: str
    code: int
    seconds: float
    mebibytes: int
    sandbox: str
    stderr: str
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join(
            [
                f"case {self.number}: {self.scenario}: {self.done}",
                f"violated: {'; '.join(self.violations)}",
                f"exit code {self.code}, {self.seconds:.1f} s, {self.mebibytes} MiB",
                f"command: {self.command}",
                *(f"stderr: {line[:200]}" for line in self.stderr.splitlines()[-3:]),
                f"sandbox: {self.sandbox}",
                f"again: python -m tests.robustness.bench --case {self.number}",
            ]
        )


class Running:
    """A case from its preparation to its outcome."""

    def __init__(self, number: int, seed: int, subjects: Subjects, folder: Path) -> None:
        self.number, self.random = number, Random(f"{seed} {number}")
        pairs = plan(seed)
        self.scenario, self.mutation = pairs[number % len(pairs)]
        self.original = subjects.get(self.scenario.subject)
        self.sandbox = Sandbox.create(folder / f"case-{number:04d}", self.original)
        self.output = self.sandbox.output / self.scenario.output if self.scenario.output else None
        self.done = self._damage()
        self.files = folder / f"case-{number:04d}"  # .stdout and .stderr
        names = {"in": self.sandbox.input, "out": self.output, "beside": self.sandbox.output}
        self.arguments = [one.format(**names) for one in self.scenario.command]
        self.before = self.sandbox.snapshot()
        self.child = process.start(
            process.command(self.arguments),
            output=self.files,
            environment=_environment(self.sandbox),
            working=self.sandbox.working,
            may_train=self.arguments[0] == "train",
        )

    def _damage(self) -> str:
        if self.scenario.group == "output":
            assert self.output is not None
            self.output = prepare_output(self.mutation, self.output, self.sandbox)
            return f"output target: {self.mutation}"
        mutator = MUTATORS[self.mutation]
        found = sorted({path for pattern in self.scenario.targets for path in self.sandbox.input.glob(pattern)})
        suited = [path for path in found if mutator.suits(path)]
        if not suited:  # the subject has no file of that type
            mutator = MUTATORS["flip bits"]
            suited = [path for path in found if mutator.suits(path)]
        path = self.random.choice(suited)
        name = path.relative_to(self.sandbox.input)
        return f"{name}: {mutator.apply(Target(path, self.random, self.sandbox))}"

    def poll(self) -> CaseResult | None:
        """The outcome, once the command has ended."""
        ended = self.child.poll()
        if ended is None:
            return None
        stdout, stderr = (Path(f"{self.files}.{name}").read_text(errors="replace") for name in ("stdout", "stderr"))
        after = self.sandbox.snapshot()
        found = checks.check_end(ended, interrupted=bool(self.child.interrupted))
        found += checks.check_words(ended, self.arguments[0], stdout, stderr)
        found += checks.check_files(ended, self.before, after, self._allowed(self.before))
        if self.scenario.result == "resumed":
            recipe = "run/recipe.toml"
            found += checks.check_refused(ended, self.sandbox.input / recipe, self.original / recipe)
        if ended.code == 0 and self.scenario.result:
            path = self.output or self.sandbox.input / "run"
            found += checks.check_output(self.scenario.result, path, self.sandbox, Path(f"{self.files}.check"))
        return CaseResult(
            self.number, self.scenario.group, self.scenario.name, self.mutation, self.done,
            join(["qkv", *self.arguments]), ended.code, round(ended.seconds, 2), ended.memory >> 20,
            str(self.sandbox.root), stderr[-4000:], found,
        )  # fmt: skip

    def _allowed(self, before: Snapshot) -> list[str]:
        """Patterns of what may have changed after success."""
        found = list(self.scenario.written)
        if self.output is not None:
            name = self.output.relative_to(self.sandbox.root)
            found += [str(name), f"{name}/*", *(str(one) for one in name.parents if str(one) not in before)]
        return found

    def clean(self) -> None:
        self.sandbox.remove()
        for path in self.files.parent.glob(f"{self.files.name}.*"):
            path.unlink()


def _environment(sandbox: Sandbox) -> dict[str, str]:
    home = str(sandbox.home)
    return {"HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": str(sandbox.temporary)}


def run(
    numbers: Sequence[int], folder: Path, *, seed: int = SEED, jobs: int = 1, keep: bool = False
) -> list[CaseResult]:
    """Run cases, `jobs` at a time; the sandboxes of failed cases are kept."""
    subjects, waiting, running, outcomes = Subjects(folder / "subjects"), list(numbers), [], []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Running(waiting.pop(0), seed, subjects, folder))
        for case in list(running):
            outcome = case.poll()
            if outcome is not None:
                running.remove(case)
                outcomes.append(outcome)
                if outcome.violations:
                    print(outcome, flush=True)
                elif not keep:
                    case.clean()
        time.sleep(0.002)
    return sorted(outcomes, key=lambda one: one.number)


def summary(outcomes: Iterable[CaseResult]) -> str:
    """Counts by scenario and by mutation: cases, exit codes, violations."""
    cases = list(outcomes)
    lines = []
    for title, key in (("subjects", lambda one: one.scenario), ("mutations", lambda one: one.mutation)):
        lines += ["", f"{title:44}{'cases':>6}{'exit 0':>8}{'exit 2':>8}{'other':>7}{'violated':>10}"]
        for name in sorted({key(one) for one in cases}):
            some = [one for one in cases if key(one) == name]
            codes = Counter(one.code if one.code in (0, 2) else 1 for one in some)
            wrong = sum(bool(one.violations) for one in some)
            lines.append(f"{name:44}{len(some):6}{codes[0]:8}{codes[2]:8}{codes[1]:7}{wrong:10}")
    kinds = Counter(kind.split(":")[0] for one in cases for kind in set(one.violations))
    lines += ["", f"{len(cases)} cases, {sum(bool(one.violations) for one in cases)} with violations: {dict(kinds)}"]
    lines += [
        f"slowest {max(one.seconds for one in cases):.1f} s, most memory {max(one.mebibytes for one in cases)} MiB"
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, help="run the cases below this number", metavar="NUMBER")
    parser.add_argument("--start", type=int, default=0, help="the first of these cases", metavar="NUMBER")
    parser.add_argument("--case", type=int, action="append", help="run one case, and keep its sandbox")
    parser.add_argument("--sample", action="store_true", help="run the cases of the test suite")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--work", type=Path, help="the folder for sandboxes [a new temporary folder]")
    parser.add_argument("--report", type=Path, help="write the outcomes there, as JSON")
    options = parser.parse_args()
    folder = options.work or Path(tempfile.mkdtemp(prefix="qkv-robustness-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    os.environ.pop("QKV_DATA", None)
    process.warm()
    numbers = options.case or (
        sample(options.seed) if options.sample else range(options.start, options.cases or SAMPLE)
    )
    print(f"seed {options.seed}, sandboxes in {folder}", flush=True)
    outcomes = run(numbers, folder, seed=options.seed, jobs=options.jobs, keep=bool(options.case))
    if options.report:
        options.report.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    print(summary(outcomes))
    sys.exit(any(one.violations for one in outcomes))


if __name__ == "__main__":
    main()

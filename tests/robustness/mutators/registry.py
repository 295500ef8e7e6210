"""What a mutator is, and the list of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.robustness.sandbox import Sandbox


@dataclass(frozen=True)
class Target:
    """The file or folder that a mutator alters."""

    path: Path
    random: Random
    sandbox: Sandbox

    def beside(self) -> list[Path]:
        """The other regular files of the same folder."""
        return sorted(path for path in self.path.parent.iterdir() if path.is_file() and path != self.path)


Apply = Callable[[Target], str]  # alters the target; returns what was done, for the report


@dataclass(frozen=True)
class Mutator:
    """A way to damage a file or a folder."""

    name: str
    family: str
    apply: Apply
    suits: Callable[[Path], bool]


MUTATORS: dict[str, Mutator] = {}


def mutator(family: str, *names: str, folders: bool = False) -> Callable[[Apply], Apply]:
    """Register a mutator for files that match one of the glob patterns (any file without patterns), or for folders."""

    def register(apply: Apply) -> Apply:
        name = apply.__name__.replace("_", " ")

        def suits(path: Path) -> bool:
            if folders:
                return path.is_dir()
            return path.is_file() and (not names or any(path.match(pattern) for pattern in names))

        MUTATORS[name] = Mutator(name, family, apply, suits)
        return apply

    return register


def of_families(*families: str) -> list[Mutator]:
    return [one for one in MUTATORS.values() if one.family in families]

"""The manifest of a run: its recipe, and every change made to it on resume.

recipe.toml is a human-readable copy. A copy that was edited or truncated is rejected, since training would continue
with settings other than the recorded ones; settings are changed with `--resume RUN --set KEY=VALUE`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.config import Config, NonNegativeInt, StringList, build, read_toml, without_none, write_toml
from qkv.errors import CheckpointError, InputError
from qkv.hub.checkpoint_manifest import parse_with_digest, with_digest
from qkv.runtime.documents import read_text
from qkv.runtime.files import write_atomically
from qkv.runtime.text import printable, printable_repr
from qkv.training.recipe import Recipe

MANIFEST, RECIPE = "manifest.json", "recipe.toml"
MAX_BYTES = 2**24


@dataclass(frozen=True)
class Version:
    """A recipe, and the step from which it applies."""

    recipe: Recipe
    step: int = 0
    assignments: tuple[str, ...] = ()  # the --set options that changed the previous version


class _StoredVersion(Config):
    recipe: dict[str, Any]
    step: NonNegativeInt = 0
    assignments: StringList = ()


@dataclass(frozen=True)
class Manifest:
    """All versions of a run's recipe, oldest first."""

    versions: tuple[Version, ...]

    @property
    def recipe(self) -> Recipe:
        """Return the newest version of the recipe."""
        return self.versions[-1].recipe

    def extends_training(self, step: int) -> bool:
        """Return whether a version that applies from `step` has more epochs than its predecessor."""
        pairs = zip(self.versions, self.versions[1:], strict=False)
        return any(new.step == step and new.recipe.train.epochs > old.recipe.train.epochs for old, new in pairs)

    def write(self, folder: Path) -> None:
        """Write manifest.json, which makes the folder a run, then recipe.toml."""
        versions = [
            {"recipe": without_none(version.recipe.to_dict()), "step": version.step, "assignments": version.assignments}
            for version in self.versions
        ]
        write_atomically(folder / MANIFEST, with_digest({"versions": versions}).encode())
        write_atomically(folder / RECIPE, write_toml(self.recipe.to_dict()).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read manifest.json and check recipe.toml against it; recipe.toml may be missing.

        Keys that this version of qkv has added since the run was started have their defaults.
        """
        path = folder / MANIFEST
        record = parse_with_digest(read_text(path, MAX_BYTES), path)
        versions = record.get("versions")
        if not isinstance(versions, list) or not versions:
            raise CheckpointError(f"{path}: cut short or altered: it has no recipe")
        stored = [build(_StoredVersion, version, str(path)) for version in versions]
        _compare_recipe(folder / RECIPE, [version.recipe for version in stored])
        return cls(
            tuple(
                Version(Recipe.from_table(version.recipe, str(path)), version.step, version.assignments)
                for version in stored
            )
        )


def _compare_recipe(path: Path, stored: list[dict[str, Any]]) -> None:
    """Raise if recipe.toml exists and is not one of the last two recipes of manifest.json."""
    if not path.exists() and not path.is_symlink():
        return
    table = flat(read_toml(path))
    # A process killed while it recorded a change leaves a copy of the previous version.
    old, new = map(flat, (stored * 2)[-2:])
    if table in (old, new):
        return
    edits = list(differences(new, table))
    more = f" and {len(edits) - 3} more" if len(edits) > 3 else ""
    raise InputError(
        f"{path}: edited since the run was started: {', '.join(edits[:3])}{more}; delete the file to restore it, "
        f"or change keys of train with --resume {path.parent} --set KEY=VALUE"
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Describe every key that differs between two flat tables."""
    for key in dict.fromkeys((*old, *new)):
        if key not in new:
            yield f"{printable(key, 60)} is missing"
        elif key not in old:
            yield f"{printable(key, 60)} was added"
        elif old[key] != new[key] or type(old[key]) is not type(new[key]):
            yield f"{printable(key, 60)} is {printable_repr(new[key], 60)} instead of {printable_repr(old[key], 60)}"


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return every value by its dotted key."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values

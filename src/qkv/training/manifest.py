"""The manifest of a run: the recipe it is trained by, and every change that was made to it on resume.

recipe.toml is a copy of it for people to read. A copy that was edited or cut short is refused, since training would
continue with other settings than the run claims; a change is made with `--resume RUN --set KEY=VALUE`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qkv.config import build, read_toml, shown, write_toml
from qkv.errors import CheckpointError, InputError
from qkv.interop.manifest import parse_with_digest, with_digest
from qkv.runtime.document import read_text
from qkv.runtime.files import write_atomically
from qkv.training.recipe import Recipe

MANIFEST, RECIPE = "manifest.json", "recipe.toml"
LARGEST = 2**24  # bytes


@dataclass(frozen=True)
class Version:
    """A recipe, and the step from which the run is trained by it."""

    recipe: Recipe
    step: int = 0
    assignments: tuple[str, ...] = ()  # of --set, that made it from the version before


@dataclass(frozen=True)
class Manifest:
    """All versions of a run's recipe, oldest first."""

    versions: tuple[Version, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> "Manifest":
        return cls((Version(recipe),))

    @property
    def recipe(self) -> Recipe:
        """The newest version of the recipe."""
        return self.versions[-1].recipe

    def changed(self, recipe: Recipe, step: int, assignments: Sequence[str]) -> "Manifest":
        """The manifest with a new version of the recipe, by which the run is trained from `step`."""
        return replace(self, versions=(*self.versions, Version(recipe, step, tuple(assignments))))

    def extends_training(self, step: int) -> bool:
        """Whether a version that begins at `step` has more epochs than the one before it."""
        pairs = zip(self.versions, self.versions[1:], strict=False)
        return any(new.step == step and new.recipe.train.epochs > old.recipe.train.epochs for old, new in pairs)

    def write(self, folder: Path) -> None:
        """Write manifest.json, then recipe.toml: a folder with the first is a run."""
        write_atomically(folder / MANIFEST, with_digest(_without_none(asdict(self))).encode())
        write_atomically(folder / RECIPE, write_toml(self.recipe.to_dict()).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read manifest.json, and compare recipe.toml with it; a recipe.toml that is missing is no harm."""
        path = folder / MANIFEST
        record = parse_with_digest(read_text(path, LARGEST), path)
        versions = record.get("versions")
        if not isinstance(versions, list) or not versions:
            raise CheckpointError(f"{path}: cut short or altered: it has no recipe")
        manifest = cls(tuple(build(Version, version, str(path)) for version in versions))
        manifest._compare(folder / RECIPE)
        return manifest

    def _compare(self, path: Path) -> None:
        if not path.exists() and not path.is_symlink():
            return
        table = read_toml(path)
        # A process that was killed while it recorded a change has left the copy of the version before.
        old, new = (_flat(_without_none(version.recipe.to_dict())) for version in (self.versions * 2)[-2:])
        if _flat(table) in (old, new):
            return
        edits = list(differences(new, _flat(table)))
        more = f" and {len(edits) - 3} more" if len(edits) > 3 else ""
        raise InputError(
            f"{path}: edited since the run was started: {', '.join(edits[:3])}{more}; delete the file to restore it, "
            f"or change keys of train with --resume {path.parent} --set KEY=VALUE"
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Describe every key that differs between two flat tables."""
    for key in dict.fromkeys((*old, *new)):
        if key not in new:
            yield f"{shown(key, 60)} is missing"
        elif key not in old:
            yield f"{shown(key, 60)} was added"
        elif old[key] != new[key] or type(old[key]) is not type(new[key]):
            yield f"{shown(key, 60)} is {shown(repr(new[key]), 60)} instead of {shown(repr(old[key]), 60)}"


def _without_none(value: Any) -> Any:
    """Plain data as JSON and TOML can hold it: without None, and with lists for tuples."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value by its dotted key."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat

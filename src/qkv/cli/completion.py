"""Shell completion of recipe names, keys of --set, runs and dataset names."""

from glob import escape, glob
from importlib.resources import files
from pathlib import Path

import typer

from qkv.errors import QkvError

RUNS = Path("runs")  # default folder of runs
MANIFEST = "manifest.json"  # of a run; qkv.training.run_manifest imports torch, which is slow


def complete_recipes(incomplete: str) -> list[str]:
    """Return the names of built-in recipes and the .toml files that begin with `incomplete`."""
    names = [path.stem for path in Path(str(files("qkv") / "recipes")).rglob("*.toml")]
    return _matching([*sorted(names), *map(str, sorted(Path().glob("*.toml")))], incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Return the runs under runs/ that begin with `incomplete`; other folders if there is none."""
    runs = _matching([str(path.parent) for path in sorted(RUNS.glob(f"*/{MANIFEST}"))], incomplete)
    folders = [f"{path}/" for path in sorted(glob(f"{escape(incomplete)}*")) if Path(path).is_dir()]
    return runs or folders


def complete_datasets(incomplete: str) -> list[str]:
    """Return the names of datasets that begin with `incomplete`."""
    from qkv.registry import registered

    return _matching(sorted(registered("dataset")), incomplete)


def complete_models(incomplete: str) -> list[str]:
    """Return the names of models that begin with `incomplete`."""
    from qkv.registry import registered

    return _matching(sorted(registered("model")), incomplete)


def complete_keys(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the keys of the recipe of a command that begin with `incomplete`, with their meanings."""
    from qkv.cli.keys import FROM_DATA, recipe_keys
    from qkv.training.recipe import read_recipe

    # After an option without a value, here --set, the arguments have not been parsed.
    name = ctx.params.get("recipe") or next(iter(ctx.args), "")
    try:
        tables = recipe_keys(read_recipe(name))
    except QkvError:
        return []
    keys = (key for table in tables for key in table.keys if key.value != FROM_DATA)
    return [(f"{key.name}=", key.meaning) for key in keys if key.name.startswith(incomplete)]


def _matching(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

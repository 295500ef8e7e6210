"""What `qkv evaluate` writes down beside a run."""

import os
from datetime import UTC, datetime
from typing import Any

import torch

from qkv import __version__
from qkv.cli.talk import say
from qkv.config import build
from qkv.evaluation.provenance import closest_recipe
from qkv.evaluation.record import Record, append_record
from qkv.interop import Network
from qkv.interop.seal import read_seal
from qkv.runtime import provenance
from qkv.training.recipe import Recipe, recipe_names, recipe_table
from qkv.training.run import Run

BETWEEN_LANGUAGES = ("multi30k", "tatoeba")  # data sets of which a recipe chooses source and target


def keep_record(run: Run, model: Network, **measured: Any) -> None:
    """Write down what was measured, and all that is needed to measure it again."""
    recipe, seal = run.recipe, read_seal(run.checkpoints[-1])
    known = {name: build(Recipe, recipe_table(name), f"recipe {name}").to_dict() for name in recipe_names()}
    name, changes = closest_recipe(recipe.to_dict(), known)
    place = seal["state"]
    record = Record(
        recipe=name or os.path.basename(os.path.realpath(run.folder)),
        shipped=bool(name),
        changes=changes,
        seed=recipe.seed,
        task=recipe.task,
        model=recipe.model["name"],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=place["step"],
        minutes=round(place["seconds"] / 60, 3),
        finished=place["finished"],
        data=recipe.data.name,
        languages="-".join(filter(None, languages(run))),
        lowercase=recipe.data.lowercase,
        # Runs of before these were sealed do not say them.
        trained_on=" and then ".join(place.get("devices", ())),
        precision=seal.get("precision", ""),
        graphs=seal.get("graphs", False),
        trained_torch=seal["torch"],
        trained_commit=seal.get("commit", ""),
        trained_source_hash=seal.get("source_hash", ""),
        device=provenance.device_name(model.device),
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        **measured,
    )
    unfinished = "" if record.finished else f" (training is not finished: step {record.steps:,})"
    say(f"recorded in {append_record(run.folder, record)}{unfinished}")


def languages(run: Run) -> tuple[str, str]:
    """Source and target, where the recipe chooses them."""
    data = run.recipe.data
    return (data.source, data.target) if data.name in BETWEEN_LANGUAGES else ("", "")

"""Append the results of `qkv evaluate` to a run's results.jsonl."""

import os
from datetime import UTC, datetime
from typing import Any

import torch

from qkv import __version__
from qkv.cli.console import info
from qkv.config import build
from qkv.experiments.provenance import closest_recipe
from qkv.experiments.results import Record, append_record
from qkv.hub import Network
from qkv.hub.checkpoint_manifest import read_manifest
from qkv.runtime import provenance
from qkv.training.recipe import Recipe, recipe_names, recipe_table
from qkv.training.run import Run

MULTILINGUAL = ("multi30k", "tatoeba")  # datasets whose recipe selects source and target languages


def record_result(run: Run, model: Network, **measured: Any) -> None:
    """Append the measured values to the run's results, with everything needed to reproduce them."""
    recipe, manifest = run.recipe, read_manifest(run.checkpoints[-1])
    known = {name: build(Recipe, recipe_table(name), f"recipe {name}").to_dict() for name in recipe_names()}
    name, changes = closest_recipe(recipe.to_dict(), known)
    state = manifest["state"]
    record = Record(
        recipe=name or os.path.basename(os.path.realpath(run.folder)),
        shipped=bool(name),
        changes=changes,
        seed=recipe.seed,
        task=recipe.task,
        model=recipe.model["name"],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=state["step"],
        minutes=round(state["seconds"] / 60, 3),
        finished=state["finished"],
        data=recipe.data.name,
        languages="-".join(filter(None, languages(run))),
        lowercase=recipe.data.lowercase,
        # Manifests of older runs lack these fields.
        trained_on=" and then ".join(state.get("devices", ())),
        precision=manifest.get("precision", ""),
        graphs=manifest.get("graphs", False),
        trained_torch=manifest["torch"],
        trained_commit=manifest.get("commit", ""),
        trained_source_hash=manifest.get("source_hash", ""),
        device=provenance.device_name(model.device),
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        **measured,
    )
    suffix = "" if record.finished else f" (training is not finished: step {record.steps:,})"
    info(f"recorded in {append_record(run.folder, record)}{suffix}")


def languages(run: Run) -> tuple[str, str]:
    """Return (source, target) languages, or empty strings if the dataset has no language pair."""
    data = run.recipe.data
    return (data.source, data.target) if data.name in MULTILINGUAL else ("", "")

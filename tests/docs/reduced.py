"""The command `qkv` with trainings of a few steps, so that the commands of the documentation run in seconds.

Run as a program: training and comparing take a few examples and one epoch, evaluation a few examples; everything else
is unchanged. A run that a page assumes to exist is trained first.
"""

import re
import subprocess
import sys
from pathlib import Path

from qkv.cli.main import main
from qkv.errors import InputError
from qkv.training.recipe import read_recipe, recipe_names

SETTINGS = ("train.epochs=1", "train.valid_size=4", "train.warmup=1")
EXAMPLES, CHARACTERS = "data.size=64", "data.size=60000"  # sizes of a dataset; of the text of a language model
EVALUATED = 8  # examples
RUN = re.compile(r"runs/([a-z][\w-]*)-\d+")
RUNS = {"runs/demo": "dates-gru"}  # that have no recipe's name


def reduced(arguments: list[str]) -> list[str]:
    """Return the arguments of a command that does the same with less data."""
    command, *others = arguments or [""]
    recipe = next((word for word in others if word in recipe_names()), None)
    if command in ("train", "compare") and recipe is not None:
        size = CHARACTERS if read_recipe(recipe).task.registered_name == "language_model" else EXAMPLES
        settings = SETTINGS if "--data" in others else (*SETTINGS, size)
        added = [setting for setting in settings if _accepts(recipe, setting)]
        others += [word for setting in added for word in ("--set", setting)]
    if command == "train":
        others += [] if "--samples" in others else ["--samples", "0"]
        others += [] if "--device" in others else ["--device", "cpu"]
    if command == "evaluate" and "--limit" not in others:
        others += ["--limit", str(EVALUATED)]
    return [command, *others]


def _accepts(recipe: str, setting: str) -> bool:
    try:
        read_recipe(recipe, [setting])
    except InputError:
        return False
    return True


def train_missing_runs(arguments: list[str]) -> None:
    """Train the runs that a command names, if there are none."""
    for word in arguments:
        match = RUN.fullmatch(word)
        recipe = match[1] if match else RUNS.get(word)
        if recipe in recipe_names() and not Path(word).exists():
            command = [sys.executable, "-m", "tests.docs.reduced", "train", recipe, "--output", word]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    if sys.argv[1:2] != ["train"]:
        train_missing_runs(sys.argv[2:])
    sys.argv = ["qkv", *reduced(sys.argv[1:])]
    main()

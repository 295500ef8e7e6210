"""Numbers at the edge of their range: each is accepted or is an input error, in every field of every config."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from qkv.config import Config, build, options_of
from qkv.errors import InputError, NotFinite
from qkv.registry import lookup, registered
from qkv.tasks.base.train_config import TrainConfig
from qkv.training import job
from qkv.training.recipe import Recipe, read_recipe

from .conftest import TINY
from .stopping import stop_after

INTEGERS = [10**400, -(10**400), 16**5000, 2**63, 2**62, 2**53, 2**31, -1, 0, 1, 100]
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324, *INTEGERS]


def message(action: Callable[..., object], *arguments: object) -> str | None:
    """Return the message of an InputError or NotFinite; None without an error. Other errors propagate."""
    try:
        action(*arguments)
    except (InputError, NotFinite) as error:
        return str(error)
    return None


def is_number(hint: Any, kind: type) -> bool:
    """Return whether a field is a number of a type or a container of such numbers."""
    return hint is kind or (get_origin(hint) is not None and any(is_number(arg, kind) for arg in get_args(hint)))


def edges(config: type[Config]) -> list[tuple[str, Any]]:
    """Return every numeric field of a config with every value to try."""
    cases = []
    for name, hint in get_type_hints(config).items():
        if name not in config.model_fields or not (is_number(hint, int) or is_number(hint, float)):
            continue
        pairs = is_number(hint, int) and get_origin(hint) is tuple and get_origin(get_args(hint)[0]) is tuple
        values = FLOATS if is_number(hint, float) else INTEGERS
        cases += [(name, [[value, value]] if pairs else [value] if get_origin(hint) is tuple else value)
                  for value in values]  # fmt: skip
    return cases


TERMS = [
    (kind, name)
    for kind in ("score", "align", "position", "encoder", "image_encoder", "tokenizer")
    for name in registered(kind)
]


def check_edges(config: type[Config]) -> list[str | None]:
    """Return the messages of all edges of a config, which begin with the key, are short, or are None if valid."""
    messages = []
    for key, value in edges(config):
        text = message(build, config, {key: value}, "here")
        assert text is None or (text.startswith("here: ") and len(text) < 500), text
        messages.append(text)
        if not isinstance(value, int) or abs(value) <= 2**53:  # also if built in Python
            assert (message(lambda key=key, value=value: config(**{key: value})) is None) == (text is None) or (
                isinstance(value, float) and math.isnan(value)
            )
    return messages


@pytest.mark.parametrize("name", registered("model"))
def test_every_number_in_a_model_config_is_in_range_or_an_input_error(name: str) -> None:
    messages = check_edges(lookup("model", name).config_class)
    assert None in messages  # some are in range
    assert any(messages)


@pytest.mark.parametrize("name", registered("dataset"))
def test_every_number_in_a_dataset_config_is_in_range_or_an_input_error(name: str) -> None:
    messages = check_edges(lookup("dataset", name))
    assert name == "bandits" or (None in messages and any(messages))


@pytest.mark.parametrize("name", registered("task"))
def test_every_number_in_a_task_config_is_in_range_or_an_input_error(name: str) -> None:
    config = lookup("task", name).config_class
    messages = check_edges(config)
    assert not edges(config) or (None in messages and any(messages))


@pytest.mark.parametrize(("kind", "name"), TERMS, ids=["-".join(term) for term in TERMS])
def test_every_number_in_a_term_is_in_range_or_an_input_error(kind: str, name: str) -> None:
    options = options_of(lookup(kind, name), "train" if kind == "tokenizer" else "from_sizes")
    messages = check_edges(options)
    assert not edges(options) or (None in messages and any(messages))


@pytest.mark.parametrize(("table", "config"), [("", Recipe), ("train", TrainConfig)])
def test_every_number_in_a_recipe_is_in_range_or_an_input_error(table: str, config: type[Config]) -> None:
    base = {"task": "translate", "data": {"name": "dates"}, "model": {"name": "rnn_seq2seq"}}
    messages = []
    for key, value in edges(config):
        data = base | ({table: {key: value}} if table else {key: value})
        messages.append(message(Recipe.from_table, data, "here"))
        assert len(messages[-1] or "") < 500
    assert None in messages
    assert any(messages)


@pytest.mark.parametrize(
    "key", ["train.epochs", "train.batch_size", "model.hidden_dim", "model.name", "model.preset", "seed"]
)
@pytest.mark.parametrize("value", ["1" + "0" * 400, "1" + "0" * 5000, "0x" + "f" * 5000, "-0b1" + "0" * 9000, "[1]"])
def test_an_assignment_of_a_huge_number_is_an_input_error(key: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        read_recipe("dates-gru", [f"{key}={value}"])
    assert len(str(caught.value)) < 500


def accepted(kind: type) -> dict[str, list[Any]]:
    """Return the valid values of each field of the train table, sorted."""
    valid: dict[str, list[Any]] = {}
    for key, value in edges(TrainConfig):
        if not is_number(get_type_hints(TrainConfig)[key], kind):
            continue
        if message(build, TrainConfig, {key: value}, "here") is None:
            valid.setdefault(key, []).append(value)
    return {key: sorted(values) for key, values in valid.items()}


EXTREMES = [
    *([f"{key}={values[end]:#x}" for key, values in accepted(int).items()] for end in (0, -1)),
    *([f"{key}={values[end]!r}"] for key, values in accepted(float).items() for end in (0, -1)),
]


@pytest.mark.parametrize("assignments", EXTREMES, ids=[numbers[0] for numbers in EXTREMES])
def test_training_starts_with_every_valid_number(
    assignments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 2)
    changes = [*TINY, "data.size=40", *(f"train.{assignment}" for assignment in assignments)]
    text = message(lambda: job.begin(read_recipe("dates-gru", changes), tmp_path / "run", "cpu"))
    assert len(text or "") < 500

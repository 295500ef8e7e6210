"""Sizes beyond any memory: one clear line, whichever option or key they come from."""

from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

from qkv.cli.main import app
from qkv.pipelines.translator import Translator

from .command import Ended, process

ALLOCATION = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


def integer_options() -> list[tuple[str, str]]:
    """Every option of every command that takes an integer."""
    groups = [("", app), *((f"{group.name} ", group.typer_instance) for group in app.registered_groups)]
    found = []
    for prefix, group in groups:
        for command in group.registered_commands:
            hints = get_type_hints(command.callback, include_extras=True).values()
            integers = [hint for hint in hints if "Annotated" in str(hint) and hint.__origin__ in (int, int | None)]
            found += [(f"{prefix}{command.name}", hint.__metadata__[0].default) for hint in integers]
    return found


@pytest.mark.parametrize(("command", "option"), integer_options())
@pytest.mark.parametrize("value", [10**20, 10**400, -(10**18)], ids=["10^20", "10^400", "-10^18"])
def test_an_integer_option_out_of_range_is_an_input_error(
    qkv: Callable[..., Ended], run: Path, command: str, option: str, value: int
) -> None:
    arguments = {"translate": ["hi", "--do-sample"], "generate": ["hi"]}.get(command, [])
    ended = qkv(*command.split(), *([] if command == "data show" else [run]), *arguments, f"{option}={value}")
    assert len(ended.error) < 500


def test_a_model_beyond_any_memory_is_refused_and_leaves_nothing(qkv: Callable[..., Ended], tmp_path: Path) -> None:
    ended = qkv(
        "train", "dates-gru", "--set", "data.size=20", "--set", "model.hidden_dim=1048576", "--output", tmp_path / "run"
    )
    assert "model.hidden_dim" in ended.error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error", [RuntimeError(ALLOCATION), MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), OSError(12, "no")]
)
def test_running_out_of_memory_is_one_line_that_names_an_option(
    qkv: Callable[..., Ended], run: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(Translator, "stream", fail)
    ended = qkv("translate", run, "5 March 2026", "--device", "cpu")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: out of memory")
    assert "--num-beams" in ended.err
    assert ended.err.count("\n") == 1


def test_another_error_is_not_taken_for_one_of_memory(
    qkv: Callable[..., Ended], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a fault in the program")

    monkeypatch.setattr(Translator, "stream", fail)
    with pytest.raises(RuntimeError, match="fault"):
        qkv("translate", run, "5 March 2026", "--device", "cpu")


def test_a_process_with_little_memory_refuses_a_large_model(tmp_path: Path) -> None:
    command = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30));"
    command += "sys.argv[0] = 'qkv'; runpy.run_module('qkv', run_name='__main__')"
    arguments = ["train", "dates-gru", "--set", "model.hidden_dim=8192", "--set", "data.size=20", "--device", "cpu"]
    ended = process(*arguments, "--output", tmp_path / "run", code=command)
    assert "free" in ended.error
    assert not (tmp_path / "run").exists()

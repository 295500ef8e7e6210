"""Plug-ins: files of the user, and entry points of installed packages."""

import sys
from collections.abc import Callable, Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

import qkv as package
from qkv import registry
from qkv.errors import InputError
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.registry import describe, load_plugin, lookup, registered
from tests.cli.command import Ended

SCORE = """
import qkv
from qkv.attention import Score

@qkv.register("score", "{name}")
class {cls}(Score):
    "score = 0."
    def __init__(self, scale: "float | None" = None, power=2):
        super().__init__()

    def forward(self, query, key):
        return 0 * query @ key.transpose(-1, -2)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a package with one module and an entry point in the group qkv.plugins."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(code: str) -> None:
        (tmp_path / "their_package.py").write_text(code)
        metadata = tmp_path / "their_package-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[qkv.plugins]\ntheirs = their_package\n")
        invalidate_caches()
        registry._load_entry_points.cache_clear()

    yield install
    sys.modules.pop("their_package", None)
    registry._load_entry_points.cache_clear()


def test_a_file_registers_classes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORE.format(name="zero", cls="Zero"))
    load_plugin(tmp_path / "mine.py")
    load_plugin(tmp_path / "mine.py")  # again, e.g. in a notebook
    assert describe(lookup("score", "zero")) == "score = 0"


def test_two_files_of_the_same_name_are_two_plugins(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(SCORE.format(name="zero", cls="Zero"))
    load_plugin(tmp_path / "a" / "mine.py")
    with pytest.raises(InputError, match="already registered") as error:
        load_plugin(tmp_path / "b" / "mine.py")
    assert str(tmp_path / "a" / "mine.py") in str(error.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\n\nraise ValueError('no')", "line 3: ValueError: no"),
        ("def f(:\n    pass", "SyntaxError"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("import qkv\nqkv.register('scroe', 'x')", "did you mean score"),
        (SCORE.format(name="dot", cls="Mine"), "the score dot is already registered"),
    ],
)
def test_a_plugin_with_an_error_is_named_in_one_line(
    qkv: Callable[..., Ended], tmp_path: Path, code: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    error = qkv("models", "--plugin", tmp_path / "mine.py").error
    assert error.startswith(f"--plugin {tmp_path}/mine.py:")
    assert words in error


def test_plugins_are_loaded_before_anything_else(qkv: Callable[..., Ended], tmp_path: Path) -> None:
    assert "--plugin" in qkv("train", "no-such-recipe", "--plugin", tmp_path / "none.py").error
    (tmp_path / "text.txt").write_text("")
    assert "not a Python file" in qkv("train", "--plugin", tmp_path / "text.txt").error


def test_a_recipe_cannot_name_a_plugin(qkv: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "dates-gru"\nplugin = "mine.py"\n')
    assert "unknown key plugin" in qkv("recipes", "show", tmp_path / "mine.toml").error


def test_options_of_a_plugin_are_shown(qkv: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORE.format(name="zero", cls="Zero"))
    command = ("recipes", "show", "dates-gru", "--plugin", tmp_path / "mine.py", "--set", "model.score.name=zero")
    lines = [line.split() for line in qkv(*command, "--set", "model.score.power=3").out.splitlines()]
    assert ["model.score.power", "3", "2", "int"] in lines
    assert ["model.score.scale", "unset", "unset", "float", "or", "unset"] in lines


def test_installed_packages_are_loaded_by_their_entry_point(installed: Callable[[str], None]) -> None:
    installed(SCORE.format(name="theirs", cls="Theirs"))
    assert "theirs" in registered("score")


def test_an_installed_package_with_an_error_is_named(installed: Callable[[str], None]) -> None:
    installed("import no_such_module")
    with pytest.raises(InputError, match=r"their-package.*no_such_module"):
        registered("score")


def test_a_subclass_of_a_model_gets_its_own_config_class() -> None:
    @package.register("model", "gpt2_mine")
    class Mine(GPT2):
        pass

    assert issubclass(Mine.config_class, GPT2Config)
    assert (Mine.config_class.registered_name, GPT2Config.registered_name) == ("gpt2_mine", "gpt2")

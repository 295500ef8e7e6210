"""The command line in this process, and a registry without the plug-ins of other tests."""

import io
import sys
from collections.abc import Callable, Iterator

import pytest

from qkv import registry
from qkv.cli.main import main
from tests.cli.command import Ended


@pytest.fixture(autouse=True)
def forget_plugins() -> Iterator[Callable[[], None]]:
    """Remove the classes that a test registers; the function does it at once."""
    for kind in registry.PACKAGES:
        registry.registered(kind)  # import the built-in classes
    before = {kind: dict(classes) for kind, classes in registry._classes.items()}

    def forget() -> None:
        for kind, classes in registry._classes.items():
            classes.clear()
            classes.update(before[kind])

    yield forget
    forget()


@pytest.fixture
def qkv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the command in this process."""

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code, *capsys.readouterr())

    return call

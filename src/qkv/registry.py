"""The registry of everything that a recipe or a command chooses by name.

    @qkv.register("score", "gaussian")
    class Gaussian(Score): ...

Built-in classes are registered when their package is imported, which `lookup` does on demand. Classes from outside the
package are registered by `--plugin FILE` and by installed packages with an entry point in the group `qkv.plugins`. A
plug-in is chosen by the user, never by a recipe or a checkpoint.
"""

import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from qkv.errors import InputError, KeywordError

ENTRY_POINTS = "qkv.plugins"
MAIN = "__main__"
MIN_START = 3  # characters of a word for which all names that start with it are suggested
MAX_SUGGESTIONS = 4
NO_HINTS: Mapping[str, str] = {}
PACKAGES = {  # the package whose import registers the built-in classes of a kind
    "score": "qkv.attention",
    "align": "qkv.attention",
    "position": "qkv.attention",
    "mask": "qkv.attention",
    "encoder": "qkv.nn.encoders.source_encoders",
    "image_encoder": "qkv.nn.encoders.image_encoder",
    "model": "qkv.models",
    "task": "qkv.tasks",
    "dataset": "qkv.datasets.corpora",
    "tokenizer": "qkv.tokenizers",
    "metric": "qkv.metrics",
    "logger": "qkv.training.log",
    "claim": "qkv.experiments.claims",
}

C = TypeVar("C", bound=type[Any])
P = ParamSpec("P")
R = TypeVar("R")
_classes: dict[str, dict[str, type[Any]]] = {kind: {} for kind in PACKAGES}
_plugins: list[Path] = []  # files that were loaded


def register(kind: str, *names: str) -> Callable[[C], C]:
    """Return a class decorator that registers a class, so that recipes and commands can choose it by name.

        @qkv.register("score", "gaussian")
        class Gaussian(Score): ...

    Args:
        kind: "score", "align", "position", "encoder", "image_encoder", "model", "task", "dataset", "tokenizer",
            "metric", "logger" or "claim".
        *names: Names of the class; the first is the one it is saved under.
    """
    if kind not in _classes:
        raise InputError(f"cannot register a {kind}{nearest(kind, _classes)}")

    if not names:
        raise InputError(f'missing name: @qkv.register("{kind}", "NAME")')

    def decorate(cls: C) -> C:
        for name in names:
            existing = _classes[kind].setdefault(name, cls)
            if (existing.__module__, existing.__qualname__) != (cls.__module__, cls.__qualname__):
                raise InputError(f"the {kind} {name} is already registered, by {existing.__module__}")
            _classes[kind][name] = cls
        cls.registered_name = names[0]
        if hasattr(cls, "config_class"):
            if "config_class" not in vars(cls):  # inherited: it keeps the name that it is registered under
                base = cls.config_class
                cls.config_class = type(base)(f"{cls.__name__}Config", (base,), {"__module__": cls.__module__})
            cls.config_class.registered_name = names[0]
        return cls

    return decorate


def lookup(kind: str, name: str) -> type[Any]:
    """Return a registered class; an unknown name raises InputError with the nearest one."""
    classes = registered(kind)
    if name not in classes:
        raise InputError(unknown(kind, name))
    return classes[name]


def unknown(kind: str, name: object) -> str:
    """Return the error message for a name that is not registered."""
    hint = nearest(str(name), registered(kind))
    return f"unknown {kind} {name!r:.100}{hint}; if a plug-in registers it, pass --plugin FILE, or import it in Python"


def describe(cls: type[Any]) -> str:
    """Return the `description` of a registered class, or else the first line of its docstring."""
    text = getattr(cls, "description", "") or next(iter((cls.__doc__ or "").strip().splitlines()), "")
    return str(text).removesuffix(".")


def registered(kind: str) -> dict[str, type[Any]]:
    """Return the registered classes of a kind by name."""
    import_module(PACKAGES[kind])
    _load_entry_points()
    return _classes[kind]


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return " (did you mean ...?)" with names that start with the word or the closest one, else all known names."""
    names = sorted(known)
    close = [name for name in names if name.startswith(word)] if len(word) >= MIN_START else []
    if len(close) < 2:
        close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        shown = ", ".join(f"{prefix}{name}" for name in close[:MAX_SUGGESTIONS])
        return f" (did you mean {shown}{', ...' if len(close) > MAX_SUGGESTIONS else ''}?)"
    return f" (known: {', '.join(names) or 'none'})"


def names_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an unexpected keyword argument raises KeywordError with the nearest one."""
    return keyword_hints({})(function)


def keyword_hints(hints: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator like `names_keywords`, with hints for keyword arguments that users expect."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = frozenset(keyword_names(function))
        required = _required_names(function) if function.__name__ == "__init__" else ()

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            for name in options:
                if name not in known:
                    raise unexpected_keyword(name, known, hints)
            if missing := [name for name in required[max(0, len(args) - 1) :] if name not in options]:
                raise KeywordError(f"{type(args[0]).__name__} requires the argument {missing[0]!r}")
            return function(*args, **options)

        return call

    return decorate


def check_keywords(function: Callable[..., Any], options: Iterable[str], hints: Mapping[str, str] = NO_HINTS) -> None:
    """Raise KeywordError for an option that is not a parameter of a function, with the nearest one."""
    known = keyword_names(function)
    for name in options:
        if name not in known:
            raise unexpected_keyword(name, known, hints)


def unexpected_keyword(name: str, known: Iterable[str], hints: Mapping[str, str] = NO_HINTS) -> KeywordError:
    """Return the error for a keyword argument that a function does not have."""
    hint = f" (did you mean {hints[name]}?)" if name in hints else nearest(name, known)
    return KeywordError(f"unexpected keyword argument {name!r:.100}{hint}")


@cache
def keyword_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a function that can be passed by keyword."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds and parameter.name != "self")


def _required_names(method: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the positional parameters of a method, after self, that have no default."""
    _, *parameters = inspect.signature(method).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in positional and each.default is each.empty)


def load_plugins(plugins: Iterable[Path | str]) -> None:
    """Load the plug-ins of another process, from its `loaded_plugins`."""
    for plugin in plugins:
        if isinstance(plugin, Path):
            load_plugin(plugin)
        else:
            with suppress(ModuleNotFoundError):  # then the name of its class is unknown here, which is an error
                import_module(plugin)


def load_plugin(path: str | Path) -> None:
    """Run a Python file of the user that registers classes."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"--plugin {path}: no such file")
    name = str(path.resolve())  # of the module: two plug-ins may have the same file name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"--plugin {path}: not a Python file (*.py)")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f" line {lines[-1]}:" if lines else ""
        kind = "" if isinstance(error, InputError) else f" {type(error).__name__}:"
        raise InputError(f"--plugin {path}:{line}{kind} {error}") from error
    _plugins.append(path)


def loaded_plugins() -> list[Path | str]:
    """Return what other processes of a job must load: files of `load_plugin`, and imported modules that register."""
    files = dict.fromkeys(path.resolve() for path in _plugins)
    package = __name__.partition(".")[0]
    skipped = {MAIN, *map(str, files)}
    modules = {cls.__module__ for classes in _classes.values() for cls in classes.values()} - skipped
    return [*files, *sorted(name for name in modules if name.partition(".")[0] != package)]


def names_in_main() -> set[str]:
    """Return the names of classes that the script or notebook itself registered; other processes cannot import it."""
    return {name for classes in _classes.values() for name, cls in classes.items() if cls.__module__ == MAIN}


@cache
def _load_entry_points() -> None:
    """Load the plug-ins of installed packages, once."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            package = "" if entry.dist is None else f" of the package {entry.dist.name}"
            raise InputError(f"plug-in {entry.name}{package}: {type(error).__name__}: {error}") from error

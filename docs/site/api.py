"""The API reference: one page for the names of `import qkv`, and one for each package."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import qkv

# The packages that users import from; cli, experiments and runtime are internal.
PACKAGES = (
    "attention", "nn", "models", "datasets", "tokenizers", "metrics", "generation", "hub", "pipelines", "tasks",
    "training", "interpret", "visualize",
)  # fmt: skip
ONLY_HERE = ("qkv.experiments.", "qkv.visualize.")  # names whose packages have no page, or another `__all__`
MODULES = ("qkv.config", "qkv.registry", "qkv.errors", "qkv.types")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    pages = {"qkv": _top_level(), **{name: _package(f"qkv.{name}") for name in PACKAGES}, "other": _other()}
    for name, text in pages.items():
        path = f"api/{'index' if name == 'qkv' else name}.md"
        files.append(File.generated(config, path, content=text))
    return files


def _top_level() -> str:
    """Return the first page: the names of `import qkv`, with links to where they are documented, and the packages."""
    names = [f"| [`qkv.{name}`][{_path(value)}] | {_summary(value)} |" for name, value in _public(qkv).items()]
    table = "\n".join(["| name | |", "|---|---|", *names])
    packages = [f"- [qkv.{name}]({name}.md): {_summary(importlib.import_module(f'qkv.{name}'))}" for name in PACKAGES]
    packages.append("- [config, registry, errors, types](other.md)")
    functions = [_directive(value, name) for name, value in _public(qkv).items() if _path(value).startswith(ONLY_HERE)]
    parts = [
        "# qkv",
        "What `import qkv` offers.",
        table,
        "## Packages",
        "\n".join(packages),
        "## Functions",
        *functions,
    ]
    return "\n\n".join(parts) + "\n"


def _package(name: str) -> str:
    package = importlib.import_module(name)
    parts = [f"# {name}", _text(package)]
    if hasattr(package, "__all__"):
        parts += [_directive(value, f"{name}.{public}") for public, value in _public(package).items()]
    else:
        parts += [_module(module) for module in _public_modules(package)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _other() -> str:
    return "\n\n".join(["# config, registry, errors, types", *(_module(name) for name in MODULES)]) + "\n"


def _public_modules(package: ModuleType) -> list[str]:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in found if not module.ispkg]


def _module(name: str) -> str:
    path = name.replace(".", "/")
    options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
    return f"## {name}\n\n[Source](../../src/{path}.py)\n\n::: {name}\n{options}"


def _public(module: ModuleType) -> dict[str, object]:
    """Return what `__all__` of a module names, except texts such as the version."""
    values = {name: getattr(module, name) for name in sorted(module.__all__, key=str.lower)}
    return {name: value for name, value in values.items() if not isinstance(value, str)}


def _path(value: Any) -> str:
    """Return the full name of a class or function, where it is defined; "" for anything else."""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else ""


def _directive(value: object, name: str) -> str:
    if _path(value):
        return f"::: {_path(value)}"
    return f"### {name.rpartition('.')[2]}\n\nA type alias or constant: `{value}`."


def _text(module: ModuleType) -> str:
    return (module.__doc__ or "").strip()


def _summary(value: object) -> str:
    return (value.__doc__ or "").strip().splitlines()[0]

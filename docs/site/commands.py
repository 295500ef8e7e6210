"""The reference of the commands: the help of each, as a page."""

import html
import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from qkv.cli.main import app

PAGE = "api/commands.md"
HEAD = "---\nsearch:\n  boost: 3\n---\n\n# Commands"  # options are looked up here first
EXTRA = re.compile(r"\s*\[(?:default: (.*)|(required))\]$", re.DOTALL)
Command = Any  # of click, which some versions of typer depend on and others vendor


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    parts = [HEAD, "Every command of `qkv`, as `qkv COMMAND --help` prints it."]
    parts += [_section(name, command) for name, command in _commands("qkv", typer.main.get_command(app))]
    files.append(File.generated(config, PAGE, content="\n\n".join(parts) + "\n"))
    return files


def _commands(name: str, command: Command) -> Iterator[tuple[str, Command]]:
    """Return the commands below a group, in the order of its help."""
    for part, nested in command.commands.items():
        if nested.hidden:
            continue
        is_group = hasattr(nested, "commands")
        if not is_group or nested.invoke_without_command:
            yield f"{name} {part}", nested
        if is_group:
            yield from _commands(f"{name} {part}", nested)


def _section(name: str, command: Command) -> str:
    context = command.context_class(command, info_name=name)
    rows = [
        _row(*record)
        for kind in ("argument", "option")
        for parameter in command.params
        if parameter.param_type_name == kind and (record := parameter.get_help_record(context))
    ]
    table = "\n".join(["| argument or option | | default |", "|---|---|---|", *rows])
    usage = f"    {' '.join([name, *command.collect_usage_pieces(context)])}"
    return "\n\n".join([f"## {name}", usage, _text(command.help or ""), table])


def _row(name: str, text: str) -> str:
    extra = EXTRA.search(text)
    default = f"`{extra[1]}`" if extra and extra[1] else "required" if extra else ""
    return f"| `{name}` | {_text(EXTRA.sub('', text))} | {default} |".replace("\n", " ")


def _text(text: str) -> str:
    """Return a help text as Markdown, with options as code; what is between backticks is code already."""
    prose = html.escape(text, quote=False).replace("|", "&#124;")
    parts = re.split(r"(`[^`]*`)", re.sub(r"(?<![\w`-])(--[a-z][\w-]*)(?![\w`-])", r"`\1`", prose))
    return "".join(part if part.startswith("`") else re.sub(r"[\\*_]", r"\\\g<0>", part) for part in parts)

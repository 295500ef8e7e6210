"""Entry point of the `qkv` command."""

import errno
import os
import re
import sys
import warnings
from difflib import get_close_matches
from typing import Any

import typer

from qkv import __version__
from qkv.cli import console
from qkv.cli.commands import (
    caption,
    catalog,
    chat,
    claims,
    compare,
    convert,
    data,
    demo,
    encoders,
    evaluate,
    explain,
    generate,
    models,
    parse,
    serve,
    train,
    transcribe,
    translate,
    view,
)
from qkv.cli.options import INTERRUPTED, add_plugin_option
from qkv.errors import InputError, QkvError, TruncationWarning, Unsupported
from qkv.runtime.native import reserve_standard_descriptors
from qkv.runtime.text import message_line, printable

BAD_INPUT = 2
MEMORY_OPTIONS = (
    "--batch-size",
    "--num-beams",
    "--num-return-sequences",
    "--max-new-tokens",
)  # options whose values scale memory use
# Click's UsageError; some versions of typer depend on click, others vendor it.
UsageError: Any = typer.BadParameter.__base__

OTHER_NAMES = {  # options of other tools and of other commands
    "--file": ("--input",),
    "-i": ("--input",),
    "--out": ("--output", "--page"),
    "-o": ("--output", "--page"),
    "--output": ("--page",),
    "--html": ("--page",),
    "--max-length": ("--max-new-tokens",),
    "--learning-rate": ("--set train.lr=...",),
}
OTHER_COMMANDS = {  # commands of other tools, by the group
    "qkv": {
        "help": "qkv --help",
        "predict": "qkv classify, tag, translate or generate",
        "finetune": "qkv train RECIPE --set init=MODEL",
        "test": "qkv evaluate",
        "list": "qkv recipes, qkv models or qkv data list",
    },
    "qkv data": {
        "download": "qkv data fetch NAME",
        "tokenize": "qkv data prepare",
        "describe": "qkv data check FILE",
        "validate": "qkv data check FILE",
    },
    "qkv claims": {"list": "qkv claims"},
}
NO_COMMAND = re.compile("No such command '([^']*)'")
PYDANTIC = {  # messages of typer's validation, in the words of the other options
    "Value error, ": "",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be ": "must be ",
}
app = typer.Typer(
    name="qkv",
    help="Train, run and inspect attention models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="demo")(demo.demo)
app.command(name="train")(train.train)
app.command(name="evaluate")(evaluate.evaluate)
app.command(name="compare")(compare.compare)
app.command(name="translate")(translate.translate)
app.command(name="generate")(generate.generate)
app.command(name="chat")(chat.chat)
app.command(name="classify")(encoders.classify)
app.command(name="tag")(encoders.tag)
app.command(name="parse")(parse.parse)
app.command(name="answer")(encoders.answer)
app.command(name="caption")(caption.caption)
app.command(name="transcribe")(transcribe.transcribe)
app.command(name="fill")(encoders.fill)
app.command(name="embed")(encoders.embed)
app.command(name="view")(view.view)
app.command(name="explain")(explain.explain)
app.command(name="convert")(convert.convert)
app.command(name="serve")(serve.serve)
app.add_typer(data.app, name="data")
app.add_typer(catalog.recipes, name="recipes")
app.add_typer(models.app, name="models")
app.add_typer(claims.app, name="claims")
add_plugin_option(app)


def _version(requested: bool) -> bool:
    if requested:
        console.result(f"qkv {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line; an expected error prints one line and sets the exit code."""
    try:
        code = _run()
    except (InputError, Unsupported) as error:
        code = _print_error(str(error), BAD_INPUT)
    except QkvError as error:
        code = _print_error(str(error), 1)
    except UsageError as error:
        code = _usage_error(error)
    except (console.OutputClosed, BrokenPipeError):
        # Without this, Python reports a broken pipe when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno == errno.ENOMEM:
            code = _out_of_memory()
        else:
            prefix = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
            code = _print_error(f"{prefix}{error.strerror or error}", BAD_INPUT)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except (MemoryError, RuntimeError) as error:
        from qkv.runtime.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        code = _out_of_memory()
    sys.exit(code if isinstance(code, int) else 0)


def _run() -> Any:
    reserve_standard_descriptors()
    warnings.simplefilter("ignore", TruncationWarning)  # commands print a note instead
    if sys.stdout is None:
        raise InputError("standard output is closed")
    # Escape characters that the terminal's encoding cannot represent instead of failing.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number, argument in enumerate(sys.argv[1:], start=1):
        if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
            raise InputError(f"argument {number} is not UTF-8: {printable(repr(os.fsencode(argument)))}")
    code = app(prog_name="qkv", standalone_mode=False)
    sys.stdout.flush()
    return code


def _print_error(message: str, code: int) -> int:
    console.info(message_line(f"error: {message}"))
    return code


def _out_of_memory() -> int:
    """Print an error that names the options of the command that reduce its memory use."""
    command = sys.argv[1]
    if command == "train":
        return _print_error("out of memory: reduce train.batch_size or the model's dimensions with --set", 1)
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    available = {option for parameter in parameters for option in parameter.opts}
    names = [option for option in MEMORY_OPTIONS if option in available]
    advice = f"reduce {' or '.join(names)}" if names else "use smaller inputs or free some memory"
    return _print_error(f"out of memory: {advice}", 1)


def _other_name(error: Any) -> str | None:
    """Return the option of a command for one that other tools have: --input for --file, --set train.lr=... for --lr."""
    name, context = getattr(error, "option_name", None), error.ctx
    if name is None or context is None:
        return None
    options = {option for parameter in context.command.params for option in parameter.opts}
    others = OTHER_NAMES.get(name.replace("_", "-"), ())
    if other := next((other for other in others if other.partition(" ")[0] in options), None):
        return other
    from qkv.tasks.base.train_config import TrainConfig

    key = name.removeprefix("--").replace("-", "_")
    return f"--set train.{key}=..." if "--set" in options and key in TrainConfig.model_fields else None


def _close_options(error: Any) -> list[str]:
    """Return the options whose names contain an unknown one (--num-beams for --beam), else those that resemble it."""
    possible: list[str] = getattr(error, "possibilities", None) or []
    word = getattr(error, "option_name", "").lstrip("-")
    similar = get_close_matches(word, [name.lstrip("-") for name in possible], cutoff=0.5)
    return [name for name in possible if word in name] or [name for name in possible if name.lstrip("-") in similar]


def _other_command(name: str, group: str, context: Any) -> str | None:
    """Return the command for one of other tools."""
    commands = getattr(context.command, "commands", {})
    if name == "help" and (words := [word for word in sys.argv if word in commands]):
        return f"{group} {words[0]} --help"
    return OTHER_COMMANDS.get(group, {}).get(name)


def _usage_error(error: Any) -> int:
    message = error.format_message()
    if "\n" in message:  # called without a command: the message is the help text
        console.info(message)
        return BAD_INPUT
    if getattr(error, "option_name", None) is not None and hasattr(error, "possibilities"):  # an unknown option
        close = _other_name(error) or " or ".join(sorted(_close_options(error)))
        message = f"{error.message.rstrip('.')} (did you mean {close}?)" if close else error.message
    command = error.ctx.command_path if error.ctx else "qkv"
    for words, others in PYDANTIC.items():
        message = message.replace(words, others)
    if (missing := NO_COMMAND.match(message)) and (other := _other_command(missing[1], command, error.ctx)):
        message = f"{missing[0]} (did you mean {other}?)"
    return _print_error(f"{message.rstrip('.')} (see {command} --help)", BAD_INPUT)

"""The command `qkv`."""

import errno
import os
import sys
from typing import Any

import typer

from qkv import __version__
from qkv.cli import (
    answer,
    caption,
    classify,
    compare,
    convert,
    data,
    demo,
    embed,
    evaluate,
    fill,
    generate,
    tag,
    talk,
    train,
    translate,
    view,
)
from qkv.cli.options import INTERRUPTED
from qkv.config import shown
from qkv.errors import InputError, QkvError, Unsupported
from qkv.runtime.native import reserve_standard_descriptors
from qkv.runtime.text import message_line

BAD_INPUT = 2
COSTLY = ("--batch-tokens", "--beam", "--n-best", "--n", "--tokens")  # options that memory grows with
# Click's UsageError: some versions of typer take it from click, others carry a copy of click inside.
Misuse: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="qkv",
    help="Attention models on one operator: train them, use them, and see what attends to what.",
    no_args_is_help=True,
    add_completion=False,
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
app.command(name="classify")(classify.classify)
app.command(name="tag")(tag.tag)
app.command(name="answer")(answer.answer)
app.command(name="caption")(caption.caption)
app.command(name="fill")(fill.fill)
app.command(name="embed")(embed.embed)
app.command(name="view")(view.view)
app.command(name="convert")(convert.convert)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> bool:
    if wanted:
        talk.result(f"qkv {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; every error that qkv foresees is one line, and decides the exit code."""
    try:
        code = _run()
    except (InputError, Unsupported) as error:
        code = _failed(str(error), BAD_INPUT)
    except QkvError as error:
        code = _failed(str(error), 1)
    except Misuse as error:
        code = _misused(error)
    except (talk.ReaderLeft, BrokenPipeError):
        # Python would try to write the rest when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno == errno.ENOMEM:
            code = _out_of_memory()
        else:
            where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
            code = _failed(f"{where}{error.strerror or error}", BAD_INPUT)
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
    if sys.stdout is None:
        raise InputError("standard output is closed: results have nowhere to go")
    # A terminal that lacks a character shows its code instead of ending the work.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number, argument in enumerate(sys.argv[1:], start=1):
        if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
            raise InputError(f"argument {number} is not UTF-8: {shown(repr(os.fsencode(argument)))}")
    code = app(prog_name="qkv", standalone_mode=False)
    sys.stdout.flush()
    return code


def _failed(message: str, code: int) -> int:
    talk.say(message_line(f"error: {message}"))
    return code


def _out_of_memory() -> int:
    """Name the options of the command that decide how much memory it takes."""
    command = sys.argv[1]
    if command == "train":
        return _failed("out of memory: lower train.batch_tokens or the sizes of the model with --set", 1)
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    known = {option for parameter in parameters for option in parameter.opts}
    names = [option for option in COSTLY if option in known]
    advice = f"lower {' or '.join(names)}" if names else "use smaller inputs, or free some memory"
    return _failed(f"out of memory: {advice}", 1)


def _misused(error: Any) -> int:
    message = error.format_message()
    if "\n" in message:  # called without a command: the message is the help itself
        talk.say(message)
        return BAD_INPUT
    command = error.ctx.command_path if error.ctx else "qkv"
    return _failed(f"{message.rstrip('.')} (see {command} --help)", BAD_INPUT)

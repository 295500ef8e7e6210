"""The command `qkv`."""

import sys

import click
import typer

from qkv import __version__
from qkv.cli import data, demo, evaluate, talk, train, translate, view
from qkv.errors import InputError, QkvError, Unsupported

INTERRUPTED = 130

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
app.command(name="translate")(translate.translate)
app.command(name="view")(view.view)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        talk.result(f"qkv {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; every error that qkv foresees is one line, and decides the exit code."""
    try:
        code = app(standalone_mode=False)
    except (InputError, Unsupported) as error:
        code = _failed(error, 2)
    except QkvError as error:
        code = _failed(error, 1)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _failed(error: QkvError, code: int) -> int:
    talk.say(f"error: {error}")
    return code

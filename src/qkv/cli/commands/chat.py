"""`qkv chat`: conversation with a dialogue model."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import (
    command_line,
    info,
    note,
    on_terminal,
    progress_bar,
    result_json,
    result_line,
    result_rich,
    results_to,
)
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.generation import GenerationConfig
    from qkv.pipelines.chat_bot import ChatBot, Reply
    from qkv.pipelines.output import AttentionMap

YOU, BOT = "you> ", "bot> "
NEW, QUIT = "/new", "/quit"


def chat(
    run: options.Folder,
    messages: Annotated[list[str] | None, typer.Argument(metavar="MESSAGE", help="Message.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Input file, one message per line or a table (- for stdin)."),
    ] = None,
    column: options.InputColumn = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Maximum number of new tokens.")] = 60,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = 0,
    history_turns: Annotated[
        int | None, typer.Option("--history-turns", help="Maximum number of turns of the history [as in training].")
    ] = None,
    history_tokens: Annotated[
        int | None, typer.Option("--history-tokens", help="Maximum number of tokens of the history [as in training].")
    ] = None,
    dtype: options.DType = options.DecodingDType.auto,
    attention: Annotated[
        bool, typer.Option("--attention", help="Show the words of the history that each word attended to.")
    ] = False,
    output: options.Output = None,
    page: options.Page = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Converse with a dialogue model.

    On a terminal, you write the messages: /new starts a new conversation, and Ctrl-D ends it. Otherwise messages are
    arguments, the lines of a file or of standard input, or the column "text" of a table (*.csv, *.tsv, *.jsonl), and
    the responses are printed on a line each; an empty line starts a new conversation. Responses are sampled;
    --temperature 0 is greedy search. The model is given the last turns of the conversation (--history-turns,
    --history-tokens).
    """
    interactive = not messages and file is None and sys.stdin is not None and sys.stdin.isatty()
    if interactive and output is not None:
        raise InputError("--output needs messages as arguments, or --input")
    columns = options.parse_columns(column)
    if interactive and columns:
        raise InputError("--column requires a table (*.csv, *.tsv or *.jsonl) as --input")
    lines = None if interactive else _read_messages(messages, file, columns)

    from qkv.generation import GenerationConfig, Sampling
    from qkv.pipelines.chat_bot import ChatBot

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    config = GenerationConfig(max_new_tokens=max_new_tokens, sampling=sampling)
    bot = ChatBot(run, device=device, dtype=dtype.value, **_limits(run, history_turns, history_tokens))
    bot.check(config)
    printer = Printer(json, attention, page is not None, prompt=interactive and on_terminal() and not json)
    with _page_of(printer.replies, page, run), results_to(output):
        if lines is None:
            _converse(bot, config, printer)
        else:
            _respond_to_lines(bot, lines, config, printer)


def _read_messages(messages: list[str] | None, file: Path | None, columns: dict[str, str]) -> list[str]:
    """Return the messages; there is at least one that is not empty."""
    lines = texts.read_inputs(messages, file, columns)
    if not any(line.strip() for line in lines):
        raise InputError("the conversation is empty: pass at least one message")
    return lines


def _limits(run: Path, history_turns: int | None, history_tokens: int | None) -> dict[str, Any]:
    """Return the limits of the history: the options, else those of the training run, else the defaults."""
    from qkv.hub.model_folder import named_folder
    from qkv.training.run import find_run

    trained = find_run(run) if named_folder(run).exists() else None
    limits: dict[str, Any] = {"history_turns": history_turns, "history_tokens": history_tokens}
    for name, value in limits.items():
        if value is None and trained is not None:
            limits[name] = getattr(trained.recipe.task, name, None)
    return {name: value for name, value in limits.items() if value is not None}


@dataclass
class Printer:
    """Prints replies, and keeps those of a page."""

    json: bool
    attention: bool
    keeps: bool
    prompt: bool  # whether to mark the speaker
    replies: list["Reply"] = field(default_factory=list)
    conversation: int = 1  # number of the current conversation
    truncation_noted: bool = False

    def print_reply(self, number: int, message: str, reply: "Reply") -> None:
        """Print the reply to a message, its attention and notes."""
        self.replies += [reply] * self.keeps
        texts.note_unknown_tokens({number: reply.unknown} if reply.unknown else {})
        if reply.truncated:
            note(f"input {number} is too long for the history: the model is given its end")
        if reply.dropped_turns and not self.truncation_noted:
            note(f"the history is limited to the last {len(reply.history)} turn(s) from input {number} on")
            self.truncation_noted = True
        if self.json:
            shown = self._attention_json(reply) if self.attention else {}
            head = {"input": number, "conversation": self.conversation, "message": message}
            result_json({**head, **reply.to_dict(), **shown})
            return
        result_line(f"{BOT if self.prompt else ''}{reply.text}")
        if self.attention:
            self._print_heat_map(reply)

    def print_empty(self, number: int, *, new: bool) -> None:
        """Print the result of an empty line, so that each line has one."""
        if self.json:
            head = {"input": number, "conversation": self.conversation, "message": ""}
            result_json({**head, "text": "", "score": None})
        else:
            result_line("")
        if new:
            self.start_conversation()

    def start_conversation(self) -> None:
        """Count a new conversation."""
        self.conversation += 1
        self.truncation_noted = False

    def _attention_json(self, reply: "Reply") -> dict[str, Any]:
        if not reply.attention or not reply.text.strip():
            return {"history_words": None, "words": None, "attention": None}
        words = reply.words()
        weights = [[round(float(weight), 5) for weight in row] for row in words.average]
        return {"history_words": list(words.columns), "words": list(words.rows), "attention": weights}

    def _print_heat_map(self, reply: "Reply") -> None:
        from qkv.visualize.terminal import heat_map

        if not reply.attention:
            note("this model has no attention")
        elif reply.text.strip():
            result_rich(heat_map(most_attended(reply.words(), shutil.get_terminal_size().columns)))


def most_attended(words: "AttentionMap", width: int) -> "AttentionMap":
    """Return a map with the columns of the greatest weights, as many as fit into `width` cells, in their order."""
    from qkv.visualize.terminal import column_widths, label_width

    average, widths = words.average, column_widths(words.columns)
    width -= label_width(words.rows, width) + 1
    kept = []
    for column in sorted(range(len(widths)), key=lambda column: -average[:, column].max()):
        width -= widths[column]
        if width < 0:
            break
        kept.append(column)
    kept.sort()
    return replace(words, columns=tuple(words.columns[column] for column in kept), weights=words.weights[:, :, kept])


def _respond_to_lines(bot: "ChatBot", lines: list[str], config: "GenerationConfig", printer: Printer) -> None:
    """Print a line for each message; an empty line starts a new conversation."""
    with progress_bar("responding", len(lines), streaming=True) as progress:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                printer.print_reply(number, line, bot.send(line, config))
            else:
                printer.print_empty(number, new=bool(bot.history))
                bot.reset()
            progress(number)


def _converse(bot: "ChatBot", config: "GenerationConfig", printer: Printer) -> None:
    """Respond to the lines that the user enters until the end of the input."""
    with suppress(ImportError):
        import readline  # noqa: F401  (importing it enables line editing)
    info(f"{bot.name}: {NEW} starts a new conversation, Ctrl-D or {QUIT} ends it")
    number = 0
    while (line := _read_line(printer.prompt)) is not None and line.strip() != QUIT:
        if line.strip() == NEW:
            bot.reset()
            printer.start_conversation()
            info("new conversation")
        elif line.strip():
            number += 1
            try:
                printer.print_reply(number, line, bot.send(line, config))
            except InputError as error:
                note(f"input {number} is ignored: {error}")


def _read_line(prompt: bool) -> str | None:
    """Return a line from the keyboard, or None at its end."""
    try:
        return input(YOU if prompt else "")
    except UnicodeDecodeError:
        note("the line is not UTF-8: ignored")
        return ""
    except EOFError:
        info("")
        return None
    except KeyboardInterrupt:
        info("")
        raise


@contextmanager
def _page_of(replies: "Sequence[Reply]", page: Path | None, run: Path) -> Iterator[None]:
    """Write the page of the replies at the end, also if the conversation is interrupted."""
    try:
        yield
    finally:
        if page is not None and replies:
            from qkv.visualize import save_page

            info(f"attention: {save_page(replies, page, model=str(run), command=command_line())}")

"""`qkv translate`: text in, text out."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.talk import counting, result, result_json, say
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.tasks.answer import Answer

CHUNK = 1024  # texts that are held in memory with their answers


def translate(
    run: options.Folder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="What to translate.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Translate each line of a file.")] = None,
    beam: options.Beam = 1,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="How many answers to give for each text.")] = 1,
    length_penalty: Annotated[float, typer.Option("--length-penalty", help="Score is log p / length^this.")] = 1.0,
    attention: Annotated[
        Path | None,
        typer.Option("--attention", metavar="PAGE.html", help="Also write a page that shows the attention."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Make an empty line an error.")] = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Translate texts, a file, or standard input.

    Files and standard input hold one text a line. With --json each answer is an object with its score and its alignment:
    for each target token, a row of weights over the source tokens.
    """
    if n_best > beam:
        raise InputError(f"--n-best {n_best} needs --beam {n_best} or more")
    if texts and file:
        raise InputError("give texts or --file, not both")
    lines = texts or _lines(file)
    empty = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    if empty and (strict or texts):
        raise InputError(f"input {empty[0]} is empty")
    if empty:
        say(f"note: {len(empty)} empty line(s), the first is line {empty[0]}: their answers are empty too")

    from qkv.tasks.translate import Translator

    translator = Translator(run, device=device)
    translator.check(lines)
    shown: list[Answer] = []
    with counting("translating", len(lines)) as progress:
        for begin in range(0, len(lines), CHUNK):
            chunk = lines[begin : begin + CHUNK]
            found = _translate(
                translator, chunk, beam=beam, n_best=n_best, length_penalty=length_penalty,
                attention=json or attention is not None,
            )  # fmt: skip
            for number, answers in enumerate(found, start=begin + 1):
                _print(number, answers, json=json, n_best=n_best)
                shown += answers if attention is not None else []
            progress(begin + len(chunk))
    if attention is not None:
        from qkv.view import save_page

        say(f"attention: {save_page(shown, attention)}")


def _lines(file: Path | None) -> list[str]:
    if file is not None:
        from qkv.data.files import read_lines

        return read_lines(file)
    if sys.stdin.isatty():
        say("reading lines from the keyboard; end with Ctrl-D")
    try:
        lines = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not UTF-8 at byte {error.start}") from None
    if lines == [""]:
        raise InputError("nothing to translate: give texts, --file, or lines on standard input")
    return [line.removesuffix("\r") for line in lines]


def _translate(translator: Any, lines: list[str], **rules: Any) -> list[list["Answer"]]:
    """The answers to each line; an empty line has none."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    answers: list[list[Answer]] = [[] for _ in lines]
    for number, found in zip(filled, translator.translate([lines[number] for number in filled], **rules), strict=True):
        answers[number] = found
    return answers


def _print(number: int, answers: list["Answer"], *, json: bool, n_best: int) -> None:
    if not answers and not json:
        result("")
    for rank, answer in enumerate(answers, start=1):
        if rank == 1 and answer.unknown:
            names = ", ".join(f"{piece!r} (U+{ord(piece[0]):04X})" for piece in answer.unknown)
            say(f"note: input {number}: never seen in training, read as unknown: {names}")
        if json:
            result_json({"input": number, "rank": rank, **as_dict(answer)})
        elif n_best > 1:
            result(f"{number}\t{rank}\t{answer.score:.4f}\t{answer.text}")
        else:
            result(answer.text)


def as_dict(answer: "Answer") -> dict[str, Any]:
    """An answer for machines; weights are rounded to five decimals."""
    first = answer.maps[0] if answer.maps else None
    alignment = answer.alignment
    return {
        "source": answer.source,
        "text": answer.text,
        "score": round(answer.score, 6),
        "unknown": list(answer.unknown),
        "source_tokens": list(first.columns) if first else None,
        "target_tokens": list(first.rows) if first else None,
        "alignment": None if alignment is None else [[round(float(w), 5) for w in row] for row in alignment],
    }

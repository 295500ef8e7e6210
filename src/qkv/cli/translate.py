"""`qkv translate`: text in, text out."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.talk import counting, note, result, result_json, say
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.tasks.answer import Answer
    from qkv.tasks.translator import Search, Translator

MOST_PENALTY = 10.0
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
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Translate texts, a file, or standard input.

    Files and standard input hold one text a line. With --json each answer is an object with its score and its
    alignment: for each target token, a row of weights over the source tokens.
    """
    if n_best > beam:
        raise InputError(f"--n-best {n_best} needs --beam {n_best} or more")
    if not 0 <= length_penalty <= MOST_PENALTY:
        raise InputError(f"--length-penalty must lie between 0 and {MOST_PENALTY}, not {length_penalty}")
    if texts and file:
        raise InputError("give texts or --file, not both")
    lines = texts or _lines(file)
    empty = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    if empty and (strict or texts):
        raise InputError(f"input {empty[0]} is empty ({len(empty)} such input(s))")
    if empty:
        note(f"{len(empty)} empty line(s), the first is line {empty[0]}: their answers are empty too")

    from qkv.tasks.translator import Search, Translator

    translator = Translator(run, device=device)
    translator.check(lines)
    search, with_attention = Search(beam, n_best, length_penalty), json or attention is not None
    shown: list[Answer] = []
    with counting("translating", len(lines)) as progress:
        for begin in range(0, len(lines), CHUNK):
            chunk = lines[begin : begin + CHUNK]
            found = _translate(translator, chunk, search, with_attention)
            for number, (line, answers) in enumerate(zip(chunk, found, strict=True), start=begin + 1):
                _print(number, line, answers, json=json, n_best=n_best)
                shown += answers if attention is not None else []
            progress(begin + len(chunk))
    if attention is not None:
        from qkv.view import save_page

        say(f"attention: {save_page(shown, attention)}")


def _lines(file: Path | None) -> list[str]:
    from qkv.data.files import decode_lines, read_lines

    if file is not None:
        return read_lines(file)
    if sys.stdin.isatty():
        say("reading lines from the keyboard; end with Ctrl-D")
    return decode_lines(sys.stdin.buffer.read(), "standard input")


def _translate(translator: "Translator", lines: list[str], search: "Search", attention: bool) -> list[list["Answer"]]:
    """The answers to each line; an empty line has none."""
    filled = iter(translator.translate([line for line in lines if line.strip()], search, attention=attention))
    return [next(filled) if line.strip() else [] for line in lines]


def _print(number: int, line: str, answers: list["Answer"], *, json: bool, n_best: int) -> None:
    if not answers and json:  # the answer to an empty line: with one answer each, lines out are as many as lines in
        result_json({"input": number, "rank": 1, "source": line, "text": "", "score": None})
    elif not answers and n_best == 1:
        result("")
    for rank, answer in enumerate(answers, start=1):
        if rank == 1 and answer.unknown:
            note(f"input {number}: {never_seen(answer.unknown)}")
        if json:
            result_json({"input": number, "rank": rank, **as_dict(answer)})
        elif n_best > 1:
            result(f"{number}\t{rank}\t{answer.score:.4f}\t{answer.text}")
        else:
            result(answer.text)


def never_seen(pieces: Sequence[str]) -> str:
    """Words about what the model had to read as unknown."""
    names = ", ".join(f"{piece!r} ({' '.join(f'U+{ord(c):04X}' for c in piece[:3])})" for piece in pieces)
    return f"never seen in training, read as unknown: {names}"


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

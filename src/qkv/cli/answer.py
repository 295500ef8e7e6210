"""`qkv answer`: a question and a text in, and out where in the text the answer stands."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.talk import counting, note, result_json, result_line
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.data.questions import Question
    from qkv.tasks.answerer import Answered, Candidate


def answer(
    run: options.Folder,
    question: Annotated[str | None, typer.Option("--question", metavar="TEXT", help="What to ask.")] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="Where the answer may stand.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "--file",
            metavar="FILE",
            help='Many of them (- for standard input): on each line {"question": "...", "text": "..."}.',
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=options.MOST, help="How many answers to give for each question.")
    ] = 1,
    longest: Annotated[
        int, typer.Option("--longest", min=1, max=options.MOST, help="How many tokens an answer has at most.")
    ] = 30,
    stride: Annotated[
        int | None,
        typer.Option(
            "--stride",
            min=1,
            max=options.MOST,
            help="Of a long text: from window to window, in tokens [half a window].",
        ),
    ] = None,
    batch_tokens: texts.BatchTokens = 8192,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Say where in a text the answer to a question stands.

    Each answer is a line: the number of the question, the probability, the first character and the one after the last,
    and the answer, a part of the text as it is. Where it is more probable that the text holds none, a line without an
    answer comes first.
    """
    questions = _given(question, text, file)

    from qkv.tasks.answerer import Answerer

    answerer = Answerer(run, device=device)
    if cut := answerer.truncated_questions(questions):
        note(f"{len(cut)} question(s) are too long to be read to their end, the first is input {cut[0]}")
    with counting("answering", len(questions), streaming=True) as progress:
        for begin in range(0, len(questions), texts.CHUNK):
            chunk = questions[begin : begin + texts.CHUNK]
            found = answerer.answer(chunk, top, max_answer_tokens=longest, stride=stride, batch_tokens=batch_tokens)
            for number, one in enumerate(found, start=begin + 1):
                if json:
                    result_json({"input": number, **as_dict(one)})
                else:
                    _print(number, one, top)
            progress(begin + len(chunk))


def _given(question: str | None, text: str | None, file: Path | None) -> "list[Question]":
    if file is not None:
        if question is not None or text is not None:
            raise InputError("give --question and --text, or --file, not both")
        lines = [(number, line) for number, line in enumerate(texts.input_lines(file), start=1) if line.strip()]
        return [_parsed(line, f"{file}: line {number}") for number, line in lines]
    if question is None or text is None:
        raise InputError("give --question and --text, or a --file of many")
    for name, words in (("--question", question), ("--text", text)):
        if not words.strip():
            raise InputError(f"{name} is empty")
    from qkv.data.questions import Question

    return [Question(question, text)]


def _parsed(line: str, where: str) -> "Question":
    from qkv.data.questions import Question
    from qkv.data.rows import parse_json

    match parse_json(line, where):
        case {"question": str(question), "text": str(text)} if question.strip() and text.strip():
            return Question(question, text)
    raise InputError(f'{where}: must be {{"question": "...", "text": "..."}}, neither of them empty')


def _print(number: int, found: "Answered", top: int) -> None:
    rows = [(f"{one.probability:.4f}", str(one.begin), str(one.end), _one_line(one.text)) for one in found.candidates]
    if found.answer is None:
        rows.insert(0, (f"{found.no_answer:.4f}", "", "", ""))
    for row in rows[:top]:
        result_line(str(number), *row)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def as_dict(found: "Answered") -> dict[str, Any]:
    """An answer for machines; without one, what the best might have been is among the candidates."""
    return {
        "question": found.question,
        "text": found.text,
        "answer": found.answer and _candidate(found.answer),
        "no_answer": round(found.no_answer, 6),
        "candidates": [_candidate(one) for one in found.candidates],
    }


def _candidate(one: "Candidate") -> dict[str, Any]:
    return {"text": one.text, "begin": one.begin, "end": one.end, "probability": round(one.probability, 6)}

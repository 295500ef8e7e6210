"""`qkv answer`: extractive question answering."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import note, progress_bar, result_json, result_line, results_to
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.datasets.squad import Question
    from qkv.pipelines.question_answerer import AnswerSpan, ExtractedAnswer


def answer(
    run: options.Folder,
    question: Annotated[str | None, typer.Option("--question", metavar="TEXT", help="Question.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Text that may contain the answer.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='JSON Lines file (- for stdin) with {"question": "...", "text": "..."} per line.',
        ),
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", help="Number of answers per question.")] = 1,
    max_answer_tokens: Annotated[
        int, typer.Option("--max-answer-tokens", help="Maximum number of tokens in an answer.")
    ] = 30,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Stride between windows over a long text, in tokens [half a window].")
    ] = None,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Answer questions with a span of a text.

    The questions are --question and --text, or the lines of a file or of standard input in JSON Lines format. Prints
    one line per answer: question number, probability, start and end character offsets, and the answer span. If "no
    answer" is more likely than any span, an empty answer comes first.
    """
    questions = _read_questions(question, text, file)

    from qkv.pipelines.question_answerer import QuestionAnswerer

    answerer = QuestionAnswerer(run, device=device)
    if cut := answerer.truncated_questions([question.question for question in questions]):
        note(f"{len(cut)} question(s) are too long and truncated, first: input {cut[0]}")
    with results_to(output), progress_bar("answering", len(questions), streaming=True) as progress:
        for begin in range(0, len(questions), texts.CHUNK):
            chunk = questions[begin : begin + texts.CHUNK]
            answers = answerer(
                [question.question for question in chunk],
                [question.text for question in chunk],
                top_k=top_k,
                max_answer_tokens=max_answer_tokens,
                stride=stride,
                batch_size=batch_size,
            )
            for number, answer in enumerate(answers, start=begin + 1):
                if json:
                    result_json({"input": number, **as_dict(answer)})
                else:
                    _print(number, answer, top_k)
            progress(begin + len(chunk))


def _read_questions(question: str | None, text: str | None, file: Path | None) -> "list[Question]":
    if question is None and text is None:
        lines = [(number, line) for number, line in enumerate(texts.read_lines(file), start=1) if line.strip()]
        return [_parse_question(line, f"{file or texts.STDIN}: line {number}") for number, line in lines]
    if file is not None:
        raise InputError("--input cannot be combined with --question and --text")
    if question is None or text is None:
        raise InputError("missing input: pass both --question and --text, or --input")
    for name, value in (("--question", question), ("--text", text)):
        if not value.strip():
            raise InputError(f"{name} is empty")
    from qkv.datasets.squad import Question

    return [Question(question, text)]


def _parse_question(line: str, where: str) -> "Question":
    from qkv.datasets.squad import Question
    from qkv.datasets.tables import parse_json

    match parse_json(line, where):
        case {"question": str(question), "text": str(text)} if question.strip() and text.strip():
            return Question(question, text)
    raise InputError(f'{where}: expected {{"question": "...", "text": "..."}} with non-empty values')


def _print(number: int, answer: "ExtractedAnswer", top_k: int) -> None:
    rows = [
        (f"{candidate.probability:.4f}", str(candidate.start), str(candidate.end), " ".join(candidate.text.split()))
        for candidate in answer.candidates
    ]
    if answer.span is None:
        rows.insert(0, (f"{answer.no_answer:.4f}", "", "", ""))
    for row in rows[:top_k]:
        result_line(str(number), *row)


def as_dict(answer: "ExtractedAnswer") -> dict[str, Any]:
    """Return an answer as a JSON object; the best spans are listed even if "no answer" wins."""
    return {
        "question": answer.question,
        "text": answer.context,
        "answer": answer.span and _candidate(answer.span),
        "no_answer": round(answer.no_answer, 6),
        "candidates": [_candidate(candidate) for candidate in answer.candidates],
    }


def _candidate(candidate: "AnswerSpan") -> dict[str, Any]:
    return {
        "text": candidate.text,
        "begin": candidate.start,
        "end": candidate.end,
        "probability": round(candidate.probability, 6),
    }

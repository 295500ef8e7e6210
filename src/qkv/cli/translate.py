"""`qkv translate`: text in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.talk import counting, result, result_json, result_line, say
from qkv.cli.texts import CHUNK, note_unknown, parsed_given, texts_given
from qkv.config import nearest
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.data.tagged import Tagged
    from qkv.tasks.answer import Answer, AttentionMap
    from qkv.tasks.translator import Search, Translator

MOST_PENALTY = 10.0
ALIGNMENTS = ("pharaoh", "json", "none")
LEVELS = ("word", "token")


def translate(
    run: options.Folder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="What to translate.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "--file",
            metavar="FILE",
            help="Translate each line of a file (- for standard input), of *.conllu each sentence.",
        ),
    ] = None,
    beam: options.Beam = 1,
    n_best: Annotated[
        int, typer.Option("--n-best", min=1, max=1000, help="How many answers to give for each text.")
    ] = 1,
    length_penalty: Annotated[float, typer.Option("--length-penalty", help="Score is log p / length^this.")] = 1.0,
    coverage_penalty: Annotated[
        float, typer.Option("--coverage-penalty", help="How much a source token that was not read counts against it.")
    ] = 0.0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Of --beam: go on while any hypothesis might yet become better.")
    ] = False,
    min_length: Annotated[
        int, typer.Option("--min-length", min=0, max=options.MOST, help="The fewest tokens of an answer.")
    ] = 0,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=1, max=options.MOST, help="The most tokens of an answer.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="How every answer has to begin.")] = "",
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw --n-best answers instead of looking for them.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Of --sample: below 1 safer, above 1 bolder.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", max=options.MOST, help="Of --sample: only the K most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Of --sample: only the most probable tokens, P of them in all.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of --sample: another seed, another draw.")] = None,
    align: Annotated[
        str | None,
        typer.Option("--align", metavar="FORM", help="Print alignments too: pharaoh, json or none (json with --json)."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option("--align-level", metavar="LEVEL", help="word or token (pharaoh: word; json: token)."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--alignment-threshold", help="Pharaoh: every pair of this weight, not only the best."),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(
            "--attention",
            callback=options.output_file,
            metavar="PAGE.html",
            help="Also write a page that shows the attention.",
        ),
    ] = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Translate texts, a file, or standard input.

    Files and standard input hold one text a line; a file whose name ends in .conllu is read as CoNLL-U: its words, and
    the heads that models of trees ask for. With --json each answer is an object with its score and its
    alignment: for each target token, a row of weights over the source tokens. --align pharaoh prints, after a tab,
    pairs of source and target words such as 0-0 2-1.
    """
    if n_best > beam and not sample:
        raise InputError(f"--n-best {n_best} needs --beam {n_best} or more")
    for name, penalty in (("--length-penalty", length_penalty), ("--coverage-penalty", coverage_penalty)):
        if not 0 <= penalty <= MOST_PENALTY:
            raise InputError(f"{name} must lie between 0 and {MOST_PENALTY}, not {penalty}")
    if coverage_penalty and beam < 2:
        raise InputError("--coverage-penalty chooses between hypotheses: it needs --beam 2 or more")
    if exact and beam < 2:
        raise InputError("--exact compares hypotheses: it needs --beam 2 or more")
    if max_length is not None and min_length > max_length:
        raise InputError(f"--min-length {min_length} is more than --max-length {max_length}")
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    drawing: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if drawing and not sample:
        raise InputError(f"--{next(iter(drawing)).replace('_', '-')} says how to draw: it needs --sample")
    if sample and beam > 1:
        raise InputError("--sample follows one hypothesis at a time: leave --beam away, --n-best says how many to draw")
    asked = _alignment(align, level, threshold, json=json)
    sentences = parsed_given(texts, file)
    lines = [one.text for one in sentences] or texts_given(texts, file, strict=strict, option="--file")
    sources = sentences or lines

    from qkv.generation import Sampling
    from qkv.tasks.translator import Search, Translator

    search = Search(
        beam, n_best, length_penalty, coverage_penalty, min_length, max_length, prefix,
        Sampling(**drawing) if sample else None, exact,
    )  # fmt: skip
    translator = Translator(run, device=device)
    if align is not None and asked.form != "none":
        translator.check_alignment()
    translator.check(sources)
    shown: list[Answer] = []
    unknown: dict[int, Sequence[str]] = {}
    with counting("translating", len(lines), streaming=True) as progress:
        for begin in range(0, len(lines), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            with_attention = asked.form != "none" or attention is not None
            found = _translate(translator, sources[chunk], search, with_attention, begin)
            for number, (line, answers) in enumerate(zip(lines[chunk], found, strict=True), start=begin + 1):
                _print(number, line, answers, asked, json=json, n_best=n_best)
                shown += answers if attention is not None else []
                if answers and answers[0].unknown:
                    unknown[number] = answers[0].unknown
            progress(begin + len(found))
    note_unknown(unknown)
    if attention is not None:
        from qkv.view import save_page

        say(f"attention: {save_page(shown, attention)}")


@dataclass(frozen=True)
class Alignment:
    """Which alignment to print beside an answer, and how."""

    form: str
    level: str
    threshold: float | None

    def map_of(self, answer: "Answer") -> "AttentionMap | None":
        if self.form == "none" or not answer.maps:
            return None
        return answer.words() if self.level == "word" else answer.maps[0]

    def of(self, answer: "Answer") -> Any:
        """As pairs in words, or as weights, rounded to five decimals; None where there is nothing to print."""
        found = self.map_of(answer)
        if found is None:
            return None
        if self.form == "pharaoh":
            return found.pharaoh(self.threshold)
        return [[round(float(weight), 5) for weight in row] for row in found.average]


def _alignment(form: str | None, level: str | None, threshold: float | None, *, json: bool) -> Alignment:
    """What was asked for by the options, each checked."""
    for name, value, known in (("--align", form, ALIGNMENTS), ("--align-level", level, LEVELS)):
        if value is not None and value not in known:
            raise InputError(f"{name} {value} is not known{nearest(value, known)}")
    form = form or ("json" if json else "none")
    if level is not None and form == "none":
        raise InputError("--align-level needs --align pharaoh or --align json")
    if threshold is not None and form != "pharaoh":
        raise InputError("--alignment-threshold needs --align pharaoh")
    if threshold is not None and not 0 < threshold <= 1:
        raise InputError(f"--alignment-threshold must be above 0 and at most 1, not {threshold}")
    return Alignment(form, level or ("word" if form == "pharaoh" else "token"), threshold)


def _translate(
    translator: "Translator", sources: Sequence["str | Tagged"], search: "Search", attention: bool, begin: int
) -> list[list["Answer"]]:
    """The answers to each source, the first of which has the number `begin`; an empty one has none."""
    from qkv.data.tagged import text_of

    filled = {number: source for number, source in enumerate(sources, start=begin) if text_of(source).strip()}
    found = translator.translate([*filled.values()], search, attention=attention, numbers=[*filled])
    answers = dict(zip(filled, found, strict=True))
    return [answers.get(number, []) for number in range(begin, begin + len(sources))]


def _print(number: int, line: str, answers: list["Answer"], asked: Alignment, *, json: bool, n_best: int) -> None:
    if not answers and json:  # the answer to an empty line: with one answer each, lines out are as many as lines in
        result_json({"input": number, "rank": 1, "source": line, "text": "", "score": None})
    elif not answers and n_best == 1:
        result("" if asked.form == "none" else "\t")
    for rank, answer in enumerate(answers, start=1):
        if json:
            result_json({"input": number, "rank": rank, **as_dict(answer, asked)})
            continue
        columns = [answer.text] if n_best == 1 else [str(number), str(rank), f"{answer.score:.4f}", answer.text]
        if asked.form != "none":
            columns.append(asked.of(answer) if asked.form == "pharaoh" else dumps(asked.of(answer)))
        result_line(*columns)


def as_dict(answer: "Answer", asked: Alignment) -> dict[str, Any]:
    """An answer for machines."""
    found = asked.map_of(answer)
    return {
        "source": answer.source,
        "text": answer.text,
        "score": round(answer.score, 6),
        "unknown": list(answer.unknown),
        f"source_{asked.level}s": list(found.columns) if found else None,
        f"target_{asked.level}s": list(found.rows) if found else None,
        "alignment": asked.of(answer),
    }

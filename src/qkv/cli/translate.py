"""`qkv translate`: text-to-text with an encoder-decoder model."""

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.console import info, progress_bar, result, result_json, result_line
from qkv.cli.texts import CHUNK, note_unknown_tokens, read_conllu, read_texts
from qkv.errors import InputError
from qkv.registry import nearest

if TYPE_CHECKING:
    from qkv.datasets.tagged import Tagged
    from qkv.generation import GenerationConfig
    from qkv.pipelines.output import Answer, AttentionMap
    from qkv.pipelines.translator import Translator

ALIGNMENTS = ("pharaoh", "json", "none")
LEVELS = ("word", "token")


def translate(
    run: options.Folder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Text to translate.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "--file",
            metavar="FILE",
            help="Input file, one text per line (- for stdin), or *.conllu.",
        ),
    ] = None,
    beam: options.Beam = 1,
    n_best: Annotated[
        int, typer.Option("--n-best", min=1, max=1000, help="Number of hypotheses to return per text.")
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option("--length-penalty", help="Length penalty ALPHA: score = log p / length^ALPHA.")
    ] = 1.0,
    coverage_penalty: Annotated[
        float, typer.Option("--coverage-penalty", help="Weight of the coverage penalty (Wu et al. 2016).")
    ] = 0.0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Stop beam search only when no open hypothesis can still win.")
    ] = False,
    min_length: Annotated[
        int, typer.Option("--min-length", min=0, max=options.MAX_COUNT, help="Minimum number of new tokens.")
    ] = 0,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=1, max=options.MAX_COUNT, help="Maximum number of new tokens.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Force every output to start with TEXT.")
    ] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Sample --n-best outputs instead of searching.")] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Softmax temperature, with --sample.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", max=options.MAX_COUNT, help="Sample from the K most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Sample from the smallest set of tokens with total probability P.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Random seed, with --sample.")] = None,
    align: Annotated[
        str | None,
        typer.Option("--align", metavar="FORM", help="Alignment format: pharaoh, json or none [json with --json]."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--align-level", metavar="LEVEL", help="Alignment unit: word or token [pharaoh: word, json: token]."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--alignment-threshold", help="Print all pairs with at least this weight, with --align pharaoh."),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(
            "--attention",
            callback=options.check_output,
            metavar="PAGE.html",
            help="Write an HTML page with the attention weights.",
        ),
    ] = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Translate texts from arguments, a file or stdin.

    Files and standard input contain one text per line; *.conllu files provide words and the heads required by models
    with tree positions. With --json, each output is an object with its score and its alignment: for each target token,
    a row of weights over the source tokens. --align pharaoh appends a tab and pairs of source and target word
    indices such as 0-0 2-1.
    """
    sampling_options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling: dict[str, Any] = {name: value for name, value in sampling_options.items() if value is not None}
    if sampling and not sample:
        raise InputError(f"--{next(iter(sampling)).replace('_', '-')} requires --sample")
    alignment = _parse_alignment(align, level, threshold, json=json)
    sentences = read_conllu(texts, file)
    lines = [sentence.text for sentence in sentences] or read_texts(texts, file, strict=strict, option="--file")
    sources = sentences or lines

    from qkv.generation import GenerationConfig, Sampling
    from qkv.pipelines.translator import Translator

    config = GenerationConfig(
        num_beams=beam,
        num_return_sequences=n_best,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        min_new_tokens=min_length,
        max_new_tokens=max_length,
        sampling=Sampling(**sampling) if sample else None,
        exact=exact,
    )
    translator = Translator(run, device=device)
    if align is not None and alignment.form != "none":
        translator.check_alignment()
    translator.check(sources)
    shown: list[Answer] = []
    unknown: dict[int, Sequence[str]] = {}
    with progress_bar("translating", len(lines), streaming=True) as progress:
        for begin in range(0, len(lines), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            with_attention = alignment.form != "none" or attention is not None
            outputs = _translate(translator, sources[chunk], config, prefix, with_attention, begin)
            for number, (line, answers) in enumerate(zip(lines[chunk], outputs, strict=True), start=begin + 1):
                _print(number, line, answers, alignment, json=json, n_best=n_best)
                shown += answers if attention is not None else []
                if answers and answers[0].unknown:
                    unknown[number] = answers[0].unknown
            progress(begin + len(outputs))
    note_unknown_tokens(unknown)
    if attention is not None:
        from qkv.visualize import save_page

        info(f"attention: {save_page(shown, attention)}")


@dataclass(frozen=True)
class Alignment:
    """Format, unit and threshold of the alignment to print."""

    form: str
    level: str
    threshold: float | None

    def attention_map(self, answer: "Answer") -> "AttentionMap | None":
        if self.form == "none" or not answer.attention:
            return None
        return answer.words() if self.level == "word" else answer.attention[0]

    def format(self, answer: "Answer") -> Any:
        """Return Pharaoh pairs, or weights rounded to five decimals, or None if there is no alignment."""
        attention = self.attention_map(answer)
        if attention is None:
            return None
        if self.form == "pharaoh":
            return attention.pharaoh(self.threshold)
        return [[round(float(weight), 5) for weight in row] for row in attention.average]


def _parse_alignment(form: str | None, level: str | None, threshold: float | None, *, json: bool) -> Alignment:
    """Validate the alignment options and fill in their defaults."""
    for name, value, choices in (("--align", form, ALIGNMENTS), ("--align-level", level, LEVELS)):
        if value is not None and value not in choices:
            raise InputError(f"{name}: unknown value {value}{nearest(value, choices)}")
    form = form or ("json" if json else "none")
    if level is not None and form == "none":
        raise InputError("--align-level requires --align pharaoh or --align json")
    if threshold is not None and form != "pharaoh":
        raise InputError("--alignment-threshold requires --align pharaoh")
    if threshold is not None and not 0 < threshold <= 1:
        raise InputError(f"--alignment-threshold must be in (0, 1], not {threshold}")
    return Alignment(form, level or ("word" if form == "pharaoh" else "token"), threshold)


def _translate(
    translator: "Translator",
    sources: Sequence["str | Tagged"],
    config: "GenerationConfig",
    prefix: str,
    attention: bool,
    begin: int,
) -> list[list["Answer"]]:
    """Return the outputs for each source (numbered from `begin`); an empty source has none."""
    from qkv.datasets.tagged import text_of

    nonempty = {number: source for number, source in enumerate(sources, start=begin) if text_of(source).strip()}
    numbers = [*nonempty]
    outputs = translator.stream([*nonempty.values()], config, prefix=prefix, attention=attention, row_ids=numbers)
    answers = {numbers[index]: answers for index, answers in outputs}
    return [answers.get(number, []) for number in range(begin, begin + len(sources))]


def _print(number: int, line: str, answers: list["Answer"], alignment: Alignment, *, json: bool, n_best: int) -> None:
    if not answers and json:  # empty input line: keep one output line per input line
        result_json({"input": number, "rank": 1, "source": line, "text": "", "score": None})
    elif not answers and n_best == 1:
        result("" if alignment.form == "none" else "\t")
    for rank, answer in enumerate(answers, start=1):
        if json:
            result_json({"input": number, "rank": rank, **as_dict(answer, alignment)})
            continue
        columns = [answer.text] if n_best == 1 else [str(number), str(rank), f"{answer.score:.4f}", answer.text]
        if alignment.form != "none":
            formatted = alignment.format(answer)
            columns.append(formatted if alignment.form == "pharaoh" else dumps(formatted))
        result_line(*columns)


def as_dict(answer: "Answer", alignment: Alignment) -> dict[str, Any]:
    """Return a translation as a JSON object."""
    attention = alignment.attention_map(answer)
    return {
        "source": answer.source,
        "text": answer.text,
        "score": round(answer.score, 6),
        "unknown": list(answer.unknown),
        f"source_{alignment.level}s": list(attention.columns) if attention else None,
        f"target_{alignment.level}s": list(attention.rows) if attention else None,
        "alignment": alignment.format(answer),
    }

"""`qkv translate`: text-to-text with an encoder-decoder model."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from qkv.cli import options
from qkv.cli.bulk import bulk_files, decode_files
from qkv.cli.console import command_line, info, note, progress_bar, result, result_json, result_line, results_to
from qkv.cli.texts import CHUNK, add_unknown_tokens, is_repetitive, note_unknown_tokens, read_conllu, read_texts
from qkv.cli.workers import DecodeJob, Report
from qkv.errors import InputError
from qkv.registry import nearest
from qkv.runtime.cluster import WorkerOptions

if TYPE_CHECKING:
    from qkv.datasets.examples.tagged import Tagged
    from qkv.generation import GenerationConfig, Sampling
    from qkv.pipelines.output import Answer, AttentionMap
    from qkv.pipelines.translator import Translator

ALIGNMENTS = ("pharaoh", "json", "none")
LEVELS = ("word", "token")


Align = Annotated[
    str | None,
    typer.Option("--align", metavar="FORM", help="Alignment format: pharaoh, json or none [json with --json]."),
]
AlignLevel = Annotated[
    str | None,
    typer.Option("--align-level", metavar="LEVEL", help="Alignment unit: word or token [pharaoh: word, json: token]."),
]
AlignmentThreshold = Annotated[
    float | None,
    typer.Option("--alignment-threshold", help="Print all pairs with at least this weight, with --align pharaoh."),
]
MarkCopied = Annotated[
    bool, typer.Option("--mark-copied", help="Print words in brackets that were copied from the input.")
]
CoveragePenalty = Annotated[
    float, typer.Option("--coverage-penalty", help="Weight of the coverage penalty (Wu et al. 2016).")
]
Exact = Annotated[bool, typer.Option("--exact", help="Stop beam search only when no open hypothesis can still win.")]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Force every output to start with TEXT.")]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="LANGUAGE", help="Target language, for models with several, e.g. de."),
]
DoSample = Annotated[bool, typer.Option("--do-sample", help="Sample instead of searching.")]


def translate(
    run: options.Folder,
    text: options.Texts = None,
    file: options.ParsedInput = None,
    column: options.InputColumn = None,
    target: Target = None,
    num_beams: options.NumBeams = 1,
    num_return_sequences: options.NumReturnSequences = 1,
    length_penalty: options.LengthPenalty = 1.0,
    coverage_penalty: CoveragePenalty = 0.0,
    exact: Exact = False,
    min_new_tokens: options.MinNewTokens = 0,
    max_new_tokens: options.MaxNewTokens = None,
    prefix: Prefix = "",
    do_sample: DoSample = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    dtype: options.DType = options.DecodingDType.auto,
    align: Align = None,
    align_level: AlignLevel = None,
    alignment_threshold: AlignmentThreshold = None,
    mark_copied: MarkCopied = False,
    output: options.BulkOutput = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    workers: options.Workers = None,
    ray: options.Ray = False,
    ray_address: options.RayAddress = None,
    page: options.Page = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Translate texts from arguments, a file or stdin.

    Inputs have one text per line; *.conllu files have the heads that models with tree positions require. With --json,
    each output has its score and, for each target token, its weights over the source tokens and the probability that it
    was copied. --align pharaoh appends pairs of word indices (0-0 2-1). See --resume for files and folders of any size.
    """
    from qkv.generation import GenerationConfig

    config = GenerationConfig(
        num_beams=num_beams, num_return_sequences=num_return_sequences, length_penalty=length_penalty,
        coverage_penalty=coverage_penalty, exact=exact, min_new_tokens=min_new_tokens, max_new_tokens=max_new_tokens,
        sampling=_sampling(do_sample, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
    )  # fmt: skip
    alignment = _parse_alignment(align, align_level, alignment_threshold, json=json, mark_copied=mark_copied)
    placement = WorkerOptions(workers, ray, ray_address)
    files = bulk_files(text, file, output, page, resume=resume, overwrite=overwrite, strict=strict, workers=placement)
    columns = options.parse_columns(column)
    sources: list[Any] = [] if files else read_conllu(text, file)
    if columns or not (files or sources):
        sources = read_texts(text, file, strict=strict, columns=columns)
    job = TranslationJob(
        run, device, dtype.value, config, batch_size, json, CHUNK, prefix, target, alignment,
        alignment.form != "none" or page is not None or mark_copied, align not in (None, "none"), mark_copied,
    )  # fmt: skip
    if files:
        return decode_files(files, job, verbose=verbose)
    _translate_all(job, sources, output, page, verbose=verbose)


@dataclass(frozen=True)
class TranslationJob(DecodeJob):
    """A translator and the options of its translations."""

    label: ClassVar = "translating"
    prefix: str
    target: str | None
    alignment: "Alignment"
    attention: bool
    requires_alignment: bool
    mark_copied: bool

    def settings(self) -> dict[str, Any]:
        """Return the options that the translations depend on."""
        alignment = {f"align_{key}": value for key, value in asdict(self.alignment).items()}
        return {
            "command": "translate",
            **super().settings(),
            "prefix": self.prefix,
            "target": self.target,
            "mark_copied": self.mark_copied,
            **alignment,
        }

    def load(self) -> "TranslationDecoder":
        """Load the model."""
        return TranslationDecoder(self)


class TranslationDecoder:
    """Translates texts and prints the translations."""

    def __init__(self, job: TranslationJob) -> None:
        from qkv.pipelines.parser import can_parse
        from qkv.pipelines.translator import Translator

        self.translator = Translator(job.run, device=job.device, dtype=job.dtype)
        if can_parse(self.translator.tokenizer):
            raise InputError(f"{job.run}: is a parser, whose outputs are trees: use qkv parse")
        if job.requires_alignment:
            self.translator.check_alignment()
        self.target = job.target
        if job.mark_copied:
            self.translator.check_copying()
        self._printer = Printer(job.alignment, job.config, json=job.json, mark_copied=job.mark_copied)
        self._search = {
            "config": job.config, "prefix": job.prefix, "target": job.target, "batch_size": job.batch_size,
            "attention": job.attention,
        }  # fmt: skip

    @property
    def description(self) -> str:
        return self.translator.decoding

    def check(self, texts: list[str], begin: int) -> None:
        self.translator.check(texts, begin + 1, self.target)

    def decode(self, texts: list[str], begin: int, report: Report) -> dict[int, Sequence[str]]:
        return self.print_all(texts, self.translate(texts, begin, report), begin)

    def translate(self, sources: Sequence["str | Tagged"], begin: int, report: Report) -> list[list["Answer"]]:
        """Return the outputs for each source; the first one has the index `begin`."""
        return _translate(self.translator, sources, begin, self._search, report)

    def print_all(
        self, sources: Sequence["str | Tagged"], outputs: Sequence[list["Answer"]], begin: int
    ) -> dict[int, Sequence[str]]:
        """Print the outputs; return the out-of-vocabulary tokens of the sources by number."""
        return self._printer.print_all(sources, outputs, begin)


def _sampling(do_sample: bool, **values: Any) -> "Sampling | None":
    """Return the sampling options, or None without --do-sample."""
    from qkv.generation import Sampling

    sampling = Sampling(**values)
    if not do_sample and sampling != Sampling():
        raise InputError("--temperature, --top-k, --top-p and --seed require --do-sample")
    return sampling if do_sample else None


def _translate_all(
    job: TranslationJob, sources: list["str | Tagged"], output: Path | None, page: Path | None, *, verbose: bool
) -> None:
    """Translate and print the sources, and write the attention page."""
    decoder = job.load()
    if verbose:
        info(f"decoding: {decoder.description}")
    with results_to(output):
        _translate_and_print(decoder, sources, page)


def _translate_and_print(decoder: TranslationDecoder, sources: list["str | Tagged"], page: Path | None) -> None:
    decoder.translator.check(sources, target=decoder.target)
    shown: list[Answer] = []
    unknown: dict[int, Sequence[str]] = {}
    repetitive: list[int] = []
    with progress_bar("translating", len(sources), streaming=True) as progress:
        for begin in range(0, len(sources), CHUNK):
            chunk = sources[begin : begin + CHUNK]
            outputs = decoder.translate(chunk, begin, lambda lines, tokens: None)
            add_unknown_tokens(unknown, decoder.print_all(chunk, outputs, begin))
            shown += [answer for answers in outputs for answer in answers] if page is not None else []
            repetitive += [
                number
                for number, answers in enumerate(outputs, start=begin + 1)
                if answers and is_repetitive(answers[0].text) and not is_repetitive(answers[0].source)
            ]
            progress(begin + len(outputs))
    note_unknown_tokens(unknown)
    if repetitive:
        where = f"input {repetitive[0]}"
        where = where if len(repetitive) == 1 else f"{len(repetitive):,} inputs, first: {where}"
        note(
            f"{where}: the output repeats itself, which happens on inputs unlike the training data: try a complete "
            "sentence with its punctuation, or train for longer"
        )
    if page is not None:
        from qkv.visualize import save_page

        info(f"attention: {save_page(shown, page, model=decoder.translator.name, command=command_line())}")


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
        return [_rounded(row) for row in attention.average]


def _parse_alignment(
    form: str | None, level: str | None, threshold: float | None, *, json: bool, mark_copied: bool
) -> Alignment:
    """Validate the options of alignments and copies, and fill in the defaults of alignments."""
    if mark_copied and json:
        raise InputError("--mark-copied cannot be combined with --json, which has the probabilities of copies")
    for name, value, choices in (("--align", form, ALIGNMENTS), ("--align-level", level, LEVELS)):
        if value is not None and value not in choices:
            raise InputError(f"{name}: unknown value {value}{nearest(value, choices)}")
    form = form or ("json" if json else "none")
    if level is not None and form == "none":
        raise InputError("--align-level requires --align pharaoh or --align json")
    if threshold is not None and form != "pharaoh":
        raise InputError("--alignment-threshold requires --align pharaoh")
    return Alignment(form, level or ("word" if form == "pharaoh" else "token"), threshold)


def _translate(
    translator: "Translator",
    sources: Sequence["str | Tagged"],
    begin: int,
    search: dict[str, Any],
    report: Report,
) -> list[list["Answer"]]:
    """Return the outputs for each source (numbered from `begin`); an empty source has none."""
    from qkv.datasets.examples.tagged import text_of

    nonempty = {number: source for number, source in enumerate(sources, start=begin) if text_of(source).strip()}
    numbers = [*nonempty]
    answers: dict[int, list[Answer]] = {}
    report(len(sources) - len(nonempty), 0)
    for index, best in translator.stream([*nonempty.values()], row_ids=numbers, **search):
        answers[numbers[index]] = best
        report(1, sum(answer.new_tokens for answer in best))
    return [answers.get(number, []) for number in range(begin, begin + len(sources))]


class Printer:
    """Prints translations."""

    def __init__(
        self, alignment: Alignment, config: "GenerationConfig", *, json: bool, mark_copied: bool = False
    ) -> None:
        self.alignment, self.json, self.mark_copied = alignment, json, mark_copied
        self.ranked = config.num_return_sequences > 1

    def print_all(
        self, sources: Sequence["str | Tagged"], outputs: Sequence[list["Answer"]], begin: int
    ) -> dict[int, Sequence[str]]:
        """Print the outputs for each source, the first of which has the index `begin`.

        Returns the out-of-vocabulary tokens of the sources, by number.
        """
        from qkv.datasets.examples.tagged import text_of

        unknown: dict[int, Sequence[str]] = {}
        for number, (source, answers) in enumerate(zip(sources, outputs, strict=True), start=begin + 1):
            self._print(number, text_of(source), answers)
            if answers and answers[0].unknown:
                unknown[number] = answers[0].unknown
        return unknown

    def _print(self, number: int, line: str, answers: list["Answer"]) -> None:
        if not answers and self.json:  # empty input line: keep one output line per input line
            result_json({"input": number, "rank": 1, "source": line, "text": "", "score": None})
        elif not answers and not self.ranked:
            result("" if self.alignment.form == "none" else "\t")
        for rank, answer in enumerate(answers, start=1):
            if self.json:
                result_json({"input": number, "rank": rank, **as_dict(answer, self.alignment)})
                continue
            text = answer.mark_copied() if self.mark_copied else answer.text
            columns = [str(number), str(rank), f"{answer.score:.4f}", text] if self.ranked else [text]
            if self.alignment.form != "none":
                formatted = self.alignment.format(answer)
                columns.append(formatted if self.alignment.form == "pharaoh" else dumps(formatted))
            result_line(*columns)


def as_dict(answer: "Answer", alignment: Alignment) -> dict[str, Any]:
    """Return a translation as a JSON object."""
    attention = alignment.attention_map(answer)
    return {
        **answer.to_dict(),
        f"source_{alignment.level}s": list(attention.columns) if attention else None,
        f"target_{alignment.level}s": list(attention.rows) if attention else None,
        "alignment": alignment.format(answer),
        **({} if attention is None or attention.copied is None else {"copied": _rounded(attention.copied)}),
    }


def _rounded(weights: Iterable[float]) -> list[float]:
    return [round(float(weight), 5) for weight in weights]

"""`qkv generate`: text generation with a language model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import typer

from qkv.cli import options, texts
from qkv.cli.bulk import bulk_files, decode_files
from qkv.cli.console import info, on_terminal, result, result_json, result_piece, results_to
from qkv.cli.workers import DecodeJob, Report, model_of_workers
from qkv.errors import InputError
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.files import check_output_file

if TYPE_CHECKING:
    from qkv.generation import GenerationConfig
    from qkv.pipelines.generator import GeneratedText, Generator

CHUNK = 256  # prompts of a file that are decoded together


def generate(
    run: options.Folder,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Prompt.")] = None,
    file: options.BulkInput = None,
    column: options.InputColumn = None,
    document: options.Documents = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Maximum number of new tokens.")] = 100,
    num_return_sequences: options.NumReturnSequences = 1,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    dtype: options.DType = options.DecodingDType.auto,
    assistant_model: Annotated[
        str | None,
        typer.Option(
            "--assistant-model", metavar="RUN", help="Smaller model that guesses tokens; same output, often faster."
        ),
    ] = None,
    prompt_lookup: Annotated[
        bool, typer.Option("--prompt-lookup", help="Guess tokens by repeating the text so far; same output.")
    ] = False,
    wav: options.Wav = None,
    output: options.BulkOutput = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    workers: options.Workers = None,
    ray: options.Ray = False,
    ray_address: options.RayAddress = None,
    device: options.Device = "auto",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Generate text with a language model.

    Prompts are arguments, or the lines of a file or of standard input; --document reads a whole file as one prompt. Use
    --json to separate results that span several lines. On a terminal, the text of a single prompt is printed as it is
    generated. A file of any length is decoded into --output, and each file of a folder into a file of the same name in
    the folder --output; if the job is interrupted, --resume continues it. With --wav, a generated tune in ABC notation
    is also played into a WAV file.
    """
    given = [*(prompts or ()), *map(str, document or ())]
    placement = WorkerOptions(workers, ray, ray_address)
    files = bulk_files(given, file, output, resume=resume, overwrite=overwrite, strict=True, workers=placement)
    columns = options.parse_columns(column)
    lines = [] if files and not columns else texts.read_texts(prompts, file, document, strict=True, columns=columns)
    if wav is not None:
        _check_wav(wav, lines, num_return_sequences)

    from qkv.generation import GenerationConfig, Sampling

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, num_return_sequences=num_return_sequences, sampling=sampling
    )
    job = GenerationJob(run, device, dtype.value, config, batch_size, json, CHUNK, assistant_model, prompt_lookup)
    if files:
        decode_files(files, job, verbose=verbose)
    else:
        one = len(prompts or ()) == 1 and num_return_sequences == 1 and not json and output is None and wav is None
        _generate_all(job, lines, output, wav, verbose=verbose, streaming=one and on_terminal())


def _check_wav(wav: Path, prompts: list[str], num_return_sequences: int) -> None:
    if len(prompts) != 1 or num_return_sequences != 1:
        raise InputError("--wav plays one tune: give one prompt, and neither --num-return-sequences nor a folder")
    check_output_file(wav)


@dataclass(frozen=True)
class GenerationJob(DecodeJob):
    """A generator and the options of its texts."""

    label: ClassVar = "generating"
    assistant_model: str | None
    prompt_lookup: bool

    def settings(self) -> dict[str, Any]:
        """Return the options that the texts depend on."""
        return {"command": "generate", **super().settings()}

    def on(self, device: str) -> Self:
        """Return the job of a worker."""
        assistant = None if self.assistant_model is None else str(model_of_workers(self.assistant_model))
        return replace(super().on(device), assistant_model=assistant)

    def load(self) -> "GenerationDecoder":
        """Load the model."""
        return GenerationDecoder(self)


class GenerationDecoder:
    """Continues prompts and prints the texts."""

    def __init__(self, job: GenerationJob) -> None:
        from qkv.pipelines.generator import Generator

        self._job = job
        self.generator = Generator(
            job.run, device=job.device, dtype=job.dtype,
            assistant_model=job.assistant_model, prompt_lookup=job.prompt_lookup,
        )  # fmt: skip

    @property
    def description(self) -> str:
        return self.generator.decoding

    def check(self, prompts: list[str], begin: int) -> None:
        assert self._job.config.max_new_tokens is not None
        self.generator.check(prompts, self._job.config.max_new_tokens, begin + 1)

    def decode(self, prompts: list[str], begin: int, report: Report) -> dict[int, Sequence[str]]:
        answers = _generate(self.generator, prompts, begin, self._job.config, self._job.batch_size, report)
        return _print_all(answers, begin, json=self._job.json)


def _generate_all(
    job: GenerationJob, prompts: list[str], output: Path | None, wav: Path | None, *, verbose: bool, streaming: bool
) -> None:
    """Continue the prompts and print the texts; with `streaming`, that of a single prompt as it is generated.

    With `wav`, the text of a single prompt is played into a file.
    """
    decoder = job.load()
    if verbose:
        info(f"decoding: {decoder.description}")
    if streaming:
        _stream(decoder.generator, prompts[0], job.config)
        return
    answers = _generate(decoder.generator, prompts, 0, job.config, job.batch_size, lambda lines, tokens: None)
    with results_to(output):
        unknown = _print_all(answers, 0, json=job.json)
    texts.note_unknown_tokens(unknown)
    if wav is not None:
        from qkv.pipelines.synthesizer import play_abc

        tune = play_abc(answers[0][0].text, wav)
        info(f"{wav}: {tune.title or 'untitled'}, {len(tune.notes)} notes, {tune.duration:.1f} s")


def _generate(
    generator: "Generator",
    prompts: Sequence[str],
    begin: int,
    config: "GenerationConfig",
    batch_size: int | None,
    report: Report,
) -> list[list["GeneratedText"]]:
    """Return the samples of each prompt; the first prompt has the index `begin`."""
    samples: dict[int, list[GeneratedText]] = {}
    row_ids = range(begin, begin + len(prompts))
    for index, answers in generator.stream_results(prompts, config, batch_size=batch_size, row_ids=row_ids):
        samples[index] = answers
        report(1, sum(answer.new_tokens for answer in answers))
    return [samples[index] for index in range(len(prompts))]


def _stream(generator: "Generator", prompt: str, config: "GenerationConfig") -> None:
    """Print the continuation of one prompt as it is generated."""
    assert config.max_new_tokens is not None
    assert config.sampling is not None
    pieces = generator.stream(
        prompt,
        max_new_tokens=config.max_new_tokens,
        temperature=config.sampling.temperature,
        top_k=config.sampling.top_k,
        top_p=config.sampling.top_p,
        seed=config.sampling.seed,
    )
    first = next(pieces, "")  # raises if the prompt is invalid
    for piece in chain((prompt, first), pieces):
        result_piece(piece)
    result("")
    if unknown := generator.unknown_tokens(prompt):
        texts.note_unknown_tokens({1: unknown})


def _print_all(answers: Sequence[Sequence["GeneratedText"]], begin: int, *, json: bool) -> dict[int, Sequence[str]]:
    """Print the samples of each prompt; return the out-of-vocabulary tokens of the prompts, by number."""
    unknown: dict[int, Sequence[str]] = {}
    for number, samples in enumerate(answers, start=begin + 1):
        if samples[0].unknown:
            unknown[number] = samples[0].unknown
        for rank, sample in enumerate(samples, start=1):
            if json:
                result_json({"input": number, "rank": rank, **sample.to_dict()})
            else:
                result(sample.text)
    return unknown

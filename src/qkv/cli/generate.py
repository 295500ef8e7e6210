"""`qkv generate`: text generation with a language model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import result, result_json
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.pipelines.generator import GeneratedText


def generate(
    run: options.Folder,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", metavar="TEXT", help="Prompt; repeatable.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="File to use as a single prompt (- for stdin)."),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="File with one prompt per line (- for stdin)."),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, max=options.MAX_COUNT, help="Maximum number of new tokens.")
    ] = 200,
    samples: Annotated[
        int, typer.Option("--n", min=1, max=options.MAX_COUNT, help="Number of samples per prompt.")
    ] = 1,
    temperature: Annotated[float, typer.Option("--temperature", help="Softmax temperature.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", max=options.MAX_COUNT, help="Sample from the K most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", help="Sample from the smallest set of tokens with total probability P (nucleus sampling)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Generate text with a language model.

    The prompt comes from --prompt (repeatable), --file (whole file), --input (one prompt per line) or standard input.
    Use --json to separate samples that span several lines.
    """
    if sum(map(bool, (prompts, file, lines))) > 1:
        raise InputError("--prompt, --file and --input are mutually exclusive")

    from qkv.pipelines.generator import Generator

    generator = Generator(run, device=device)
    prompts = prompts or (_read_prompts(lines) if lines else [texts.read_text(file, "the prompt")])
    unknown: dict[int, Sequence[str]] = {}
    answers: list[Any] = generator(
        prompts,
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        num_return_sequences=samples,
    )
    for number, answer in enumerate(answers, start=1):
        generated = answer if samples > 1 else [answer]
        if generated[0].unknown:
            unknown[number] = generated[0].unknown
        for rank, sample in enumerate(generated, start=1):
            if json:
                result_json({"prompt": number, "sample": rank, **as_dict(sample)})
            else:
                result(sample.text)
    texts.note_unknown_tokens(unknown, "prompt")


def _read_prompts(file: Path) -> list[str]:
    prompts = texts.read_lines(file)
    if empty := [number for number, line in enumerate(prompts, start=1) if not line.strip()]:
        raise InputError(f"{file}: line {empty[0]} is empty; every line must be a prompt")
    return prompts


def as_dict(sample: "GeneratedText") -> dict[str, Any]:
    """Return a generated text as a JSON object."""
    return {
        "begins": sample.prompt,
        "continuation": sample.continuation,
        "text": sample.text,
        "score": round(sample.score, 6),
        "unknown": list(sample.unknown),
    }

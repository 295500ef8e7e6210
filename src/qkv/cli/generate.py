"""`qkv generate`: text generation with a language model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import result, result_json, results_to

if TYPE_CHECKING:
    from qkv.pipelines.generator import GeneratedText


def generate(
    run: options.Folder,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Prompt.")] = None,
    file: options.Input = None,
    document: options.Documents = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Maximum number of new tokens.")] = 100,
    num_return_sequences: options.NumReturnSequences = 1,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Generate text with a language model.

    Prompts are arguments, or the lines of a file or of standard input; --document reads a whole file as one prompt. Use
    --json to separate results that span several lines.
    """
    lines = texts.read_texts(prompts, file, document, strict=True)

    from qkv.pipelines.generator import Generator

    unknown: dict[int, Sequence[str]] = {}
    answers: list[Any] = Generator(run, device=device)(
        lines,
        max_new_tokens=max_new_tokens,
        num_return_sequences=num_return_sequences,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
    )
    with results_to(output):
        for number, answer in enumerate(answers, start=1):
            samples = answer if num_return_sequences > 1 else [answer]
            if samples[0].unknown:
                unknown[number] = samples[0].unknown
            for rank, sample in enumerate(samples, start=1):
                if json:
                    result_json({"input": number, "rank": rank, **as_dict(sample)})
                else:
                    result(sample.text)
    texts.note_unknown_tokens(unknown)


def as_dict(sample: "GeneratedText") -> dict[str, Any]:
    """Return a generated text as a JSON object."""
    return {
        "prompt": sample.prompt,
        "continuation": sample.continuation,
        "text": sample.text,
        "score": round(sample.score, 6),
        "unknown": list(sample.unknown),
    }

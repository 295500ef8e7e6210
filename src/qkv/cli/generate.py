"""`qkv generate`: a language model goes on with a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.talk import result, result_json
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.tasks.generator import Generated


def generate(
    run: options.Folder,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", metavar="TEXT", help="How the text begins.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="The whole text of the file (- for standard input) is the prompt."),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Each line of the file (- for standard input) is a prompt."),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=options.MOST, help="How many tokens to write.")] = 200,
    samples: Annotated[
        int, typer.Option("--n", min=1, max=options.MOST, help="How many texts to write for each prompt.")
    ] = 1,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1 for what is probable, above 1 for surprises.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", max=options.MOST, help="Draw from the so many most probable tokens only.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the fewest tokens with this much probability only.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same texts.")] = 0,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Let a language model go on with a text.

    Prompts are given by --prompt (several times for several), by --file (the whole of it is one), by --input (each line
    is one), or on standard input, whole. Where texts have several lines, --json tells one answer from the next.
    """
    if sum(bool(given) for given in (prompts, file, lines)) > 1:
        raise InputError("give --prompt, --file or --input, not two of them")

    from qkv.generation import Sampling
    from qkv.tasks.generator import Generator

    how = Sampling(temperature, top_k, top_p, seed)
    generator = Generator(run, device=device)
    given = prompts or (_prompts(lines) if lines else [texts.input_text(file, "the prompt")])
    unknown: dict[int, Sequence[str]] = {}
    for number, found in enumerate(generator.generate(given, tokens, how, samples=samples), start=1):
        if found[0].unknown:
            unknown[number] = found[0].unknown
        for rank, one in enumerate(found, start=1):
            if json:
                result_json({"prompt": number, "sample": rank, **as_dict(one)})
            else:
                result(one.text)
    texts.note_unknown(unknown, "prompt")


def _prompts(file: Path) -> list[str]:
    found = texts.input_lines(file)
    if empty := [number for number, line in enumerate(found, start=1) if not line.strip()]:
        raise InputError(f"{file}: line {empty[0]} is empty, and a prompt is a text: leave such lines out")
    return found


def as_dict(one: "Generated") -> dict[str, Any]:
    """What was generated, for machines."""
    return {
        "begins": one.prompt,
        "continuation": one.continuation,
        "text": one.text,
        "score": round(one.score, 6),
        "unknown": list(one.unknown),
    }

"""`qkv fill`: masked language modelling."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import result_json, result_line

if TYPE_CHECKING:
    from qkv.pipelines.mask_filler import FilledText


def fill(
    run: options.Folder,
    text: texts.Texts = None,
    file: texts.Input = None,
    top: Annotated[int, typer.Option("--top", min=1, max=options.MAX_COUNT, help="Number of words per mask.")] = 5,
    batch_size: texts.BatchSize = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Predict the words behind [MASK] in texts.

    Texts are arguments, or the lines of a file or of standard input. Prints one line per prediction: text number, mask
    number, probability and word. With --json, each text is an object that also has the text with all masks filled.
    """
    lines = texts.read_texts(text, file, strict=strict)

    from qkv.pipelines.mask_filler import MaskFiller

    filler = MaskFiller(run, device=device)
    filler.check(lines)
    for number, line, answer in texts.predictions(
        "filling in", lines, lambda chunk: filler(chunk, top_k=top, batch_size=batch_size)
    ):
        if json:
            result_json({"input": number, "text": line, **as_dict(answer)})
        elif answer is not None:
            for mask, guesses in enumerate(answer.guesses, start=1):
                for guess in guesses:
                    result_line(str(number), str(mask), f"{guess.probability:.4f}", guess.word)


def as_dict(answer: "FilledText | None") -> dict[str, Any]:
    """Return the predictions for the masks of a text as a JSON object."""
    if answer is None:
        return {"filled": "", "masks": []}
    return {
        "filled": answer.filled,
        "masks": [
            [{"word": guess.word, "probability": round(guess.probability, 6)} for guess in guesses]
            for guesses in answer.guesses
        ],
    }

"""`qkv fill`: text with masks in, words for them out."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.talk import result_json, result_line

if TYPE_CHECKING:
    from qkv.tasks.filler import Filled


def fill(
    run: options.Folder,
    text: texts.Texts = None,
    file: texts.Input = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=options.MOST, help="How many words to give for each mask.")
    ] = 5,
    batch_tokens: texts.BatchTokens = 8192,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Say which words may stand where texts, the lines of a file, or those of standard input have [MASK].

    Each guess is a line: the number of the text, that of the mask in it, the probability and the word. With --json each
    text is an object, with the text as its first guesses fill it.
    """
    lines = texts.texts_given(text, file, strict=strict)

    from qkv.tasks.filler import Filler

    filler = Filler(run, device=device)
    filler.check(lines)
    for number, line, answer in texts.answered(
        "filling in", lines, lambda some: filler.fill(some, top, batch_tokens=batch_tokens)
    ):
        if json:
            result_json({"input": number, "text": line, **as_dict(answer)})
        elif answer is not None:
            for place, guesses in enumerate(answer.guesses, start=1):
                for guess in guesses:
                    result_line(str(number), str(place), f"{guess.probability:.4f}", guess.word)


def as_dict(answer: "Filled | None") -> dict[str, Any]:
    """What may stand where the masks of a text are, for machines."""
    if answer is None:
        return {"filled": "", "masks": []}
    return {
        "filled": answer.filled,
        "masks": [
            [{"word": guess.word, "probability": round(guess.probability, 6)} for guess in guesses]
            for guesses in answer.guesses
        ],
    }

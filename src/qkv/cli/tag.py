"""`qkv tag`: token classification."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import result_json, result_line

if TYPE_CHECKING:
    from qkv.pipelines.tagger import TaggedText


def tag(
    run: options.Folder,
    text: texts.Texts = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input", "--file", metavar="FILE", help="Input file, one text per line (- for stdin), or *.conllu."
        ),
    ] = None,
    batch_size: texts.BatchSize = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Tag the words of texts.

    Texts are arguments, or the lines of a file or of standard input; the output is word/TAG word/TAG. *.conllu files
    provide words and the heads required by models with tree positions.

    With --json, each result is an object with words, tags, offsets (start and end character of each word) and, for
    BIO tags, entities.
    """
    sentences = texts.read_conllu(text, file)
    lines = [sentence.text for sentence in sentences] or texts.read_texts(text, file, strict=strict)

    from qkv.pipelines.tagger import Tagger

    tagger, remaining = Tagger(run, device=device), iter(sentences)
    for number, line, answer in texts.predictions(
        "tagging", lines, lambda chunk: tagger([*islice(remaining, len(chunk))] or chunk, batch_size=batch_size)
    ):
        if json:
            result_json({"input": number, "text": line, **as_dict(answer)})
        else:
            pairs = () if answer is None else zip(answer.words, answer.tags, strict=True)
            result_line(" ".join(f"{word}/{tag}" for word, tag in pairs))


def as_dict(answer: "TaggedText | None") -> dict[str, Any]:
    """Return a tagged text as a JSON object."""
    if answer is None:
        return {"words": [], "tags": [], "offsets": [], "entities": []}
    return {
        "words": answer.words,
        "tags": answer.tags,
        "offsets": answer.offsets,
        "entities": [asdict(entity) for entity in answer.entities],
    }

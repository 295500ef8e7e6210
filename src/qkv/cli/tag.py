"""`qkv tag`: text in, its words with a tag for each out."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.talk import result_json, result_line

if TYPE_CHECKING:
    from qkv.tasks.tagger import TaggedText


def tag(
    run: options.Folder,
    text: texts.Texts = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input", "--file", metavar="FILE", help="Read each line of a file as a text, of *.conllu each sentence."
        ),
    ] = None,
    batch_tokens: texts.BatchTokens = 8192,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Tag the words of texts, of the lines of a file, or of those of standard input: word/TAG word/TAG.

    A file whose name ends in .conllu is read as CoNLL-U: its words, and the heads that models of trees ask for.

    With --json each answer is an object with words, tags, offsets (the first character of each word, and the one after
    its last) and, where the tags name them, entities.
    """
    sentences = texts.parsed_given(text, file)
    lines = [one.text for one in sentences] or texts.texts_given(text, file, strict=strict)

    from qkv.tasks.tagger import Tagger

    tagger, waiting = Tagger(run, device=device), iter(sentences)
    for number, line, answer in texts.answered(
        "tagging", lines, lambda some: tagger.tag([*islice(waiting, len(some))] or some, batch_tokens=batch_tokens)
    ):
        if json:
            result_json({"input": number, "text": line, **as_dict(answer)})
        else:
            pairs = () if answer is None else zip(answer.words, answer.tags, strict=True)
            result_line(" ".join(f"{word}/{tag}" for word, tag in pairs))


def as_dict(answer: "TaggedText | None") -> dict[str, Any]:
    """The words of a text and what they are, for machines."""
    if answer is None:
        return {"words": [], "tags": [], "offsets": [], "entities": []}
    return {
        "words": answer.words,
        "tags": answer.tags,
        "offsets": answer.offsets,
        "entities": [asdict(entity) for entity in answer.entities],
    }

"""`qkv classify`: texts or pictures in, labels out."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.talk import note, result_json, result_line
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.tasks.classifier import Classified


def classify(
    run: options.Folder,
    text: texts.Texts = None,
    file: texts.Input = None,
    document: texts.Documents = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=options.MOST, help="How many labels to give for each text.")
    ] = 1,
    batch_tokens: texts.BatchTokens = 8192,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Say what texts, the lines of a file, or those of standard input are: each a label and its probability.

    A text that goes over several lines, such as a review, is an argument or, with --document, a whole file.
    For a vision Transformer (ViT) they are not texts but the names of files with pictures.
    With --json each answer is an object, with the probabilities of all labels, whatever --top says.
    """
    if document and (text or file):
        raise InputError("give texts, --input or --document, not several of them")
    from qkv.interop.folder import locate, network_of
    from qkv.models.vit import ViT
    from qkv.tasks.picture_classifier import MAX_BATCH

    pictures = issubclass(network_of(locate(run)), ViT)
    if pictures and document:
        raise InputError(f"--document is for models that read texts, and {run} holds a ViT: give the names of pictures")
    lines = texts.documents_given(document) if document else texts.texts_given(text, file, strict=strict)
    if text and not pictures and (files := [one for one in text if len(one) < 256 and Path(one).is_file()]):
        note(f"{files[0]} is read as a text, and is the name of a file: --document reads what is in it")
    look = _pictures(run, device, lines) if pictures else _texts(run, device, lines, batch_tokens)
    for number, line, answer in texts.answered("classifying", lines, look, MAX_BATCH if pictures else texts.CHUNK):
        if json:
            result_json({"input": number, "picture" if pictures else "text": line, **as_dict(answer)})
        else:
            ranked = [] if answer is None else [*answer.probabilities.items()][:top]
            result_line(*chain.from_iterable((label, f"{probability:.4f}") for label, probability in ranked))


def _texts(
    run: Path, device: str, lines: Sequence[str], batch_tokens: int
) -> Callable[[list[str]], "list[Classified]"]:
    from qkv.tasks.classifier import Classifier

    classifier = Classifier(run, device=device)
    texts.note_too_long(classifier, lines)
    return lambda some: classifier.classify(some, batch_tokens=batch_tokens)


def _pictures(run: Path, device: str, lines: Sequence[str]) -> Callable[[list[str]], "list[Classified]"]:
    from qkv.tasks.picture_classifier import PictureClassifier

    if missing := [line for line in lines if line.strip() and not Path(line).is_file()]:
        raise InputError(f"{missing[0]}: no such file ({len(missing)} such name(s)): nothing was looked at")
    return PictureClassifier(run, device=device).classify


def as_dict(answer: "Classified | None") -> dict[str, Any]:
    """What a text or picture is, for machines."""
    if answer is None:
        return {"label": None, "probabilities": {}}
    return {
        "label": answer.label,
        "probabilities": {label: round(value, 6) for label, value in answer.probabilities.items()},
    }

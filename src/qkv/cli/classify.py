"""`qkv classify`: text or image classification."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import note, result_json, result_line
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.pipelines.classifier import Classification


def classify(
    run: options.Folder,
    text: texts.Texts = None,
    file: texts.Input = None,
    document: texts.Documents = None,
    top: Annotated[int, typer.Option("--top", min=1, max=options.MAX_COUNT, help="Number of labels per input.")] = 1,
    batch_size: texts.BatchSize = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Classify texts or images.

    Inputs are arguments, or the lines of a file or of standard input; each is printed as label and probability. Pass a
    text of several lines, such as a review, as an argument or with --document. For a vision Transformer (ViT) the
    inputs are image paths. With --json, each result is an object with the probabilities of all labels.
    """
    if document and (text or file):
        raise InputError("texts, --input and --document are mutually exclusive")
    from qkv.hub.model_folder import ModelFolder, locate
    from qkv.models.vit import ViT
    from qkv.pipelines.image_classifier import BATCH_SIZE

    pictures = issubclass(ModelFolder(locate(run)).network, ViT)
    if pictures and document:
        raise InputError(f"--document requires a text model, but {run} is a ViT; pass image paths")
    lines = texts.read_documents(document) if document else texts.read_texts(text, file, strict=strict)
    if text and not pictures and (files := [item for item in text if len(item) < 256 and Path(item).is_file()]):
        note(f"{files[0]} is classified as a text although it names a file; use --document to read the file")
    predict = _image_classifier(run, device, lines) if pictures else _text_classifier(run, device, lines, batch_size)
    chunk = BATCH_SIZE if pictures else texts.CHUNK
    for number, line, answer in texts.predictions("classifying", lines, predict, chunk):
        if json:
            result_json({"input": number, "picture" if pictures else "text": line, **as_dict(answer)})
        else:
            ranked = [] if answer is None else [*answer.probabilities.items()][:top]
            result_line(*chain.from_iterable((label, f"{probability:.4f}") for label, probability in ranked))


def _text_classifier(
    run: Path, device: str, lines: Sequence[str], batch_size: int | None
) -> Callable[[list[str]], "list[Classification]"]:
    from qkv.pipelines.classifier import Classifier

    classifier = Classifier(run, device=device)
    texts.note_too_long(classifier, lines)
    return lambda chunk: classifier(chunk, batch_size=batch_size)


def _image_classifier(run: Path, device: str, lines: Sequence[str]) -> Callable[[list[str]], "list[Classification]"]:
    from qkv.pipelines.image_classifier import ImageClassifier

    if missing := [line for line in lines if line.strip() and not Path(line).is_file()]:
        raise InputError(f"{missing[0]}: no such file ({len(missing)} missing)")
    classifier = ImageClassifier(run, device=device)
    return lambda paths: classifier(paths)


def as_dict(answer: "Classification | None") -> dict[str, Any]:
    """Return a classification as a JSON object."""
    if answer is None:
        return {"label": None, "probabilities": {}}
    return {
        "label": answer.label,
        "probabilities": {label: round(value, 6) for label, value in answer.probabilities.items()},
    }

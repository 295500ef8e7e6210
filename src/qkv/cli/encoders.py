"""`qkv classify`, `tag`, `fill` and `embed`: the commands of text encoders."""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import note, result, result_json, result_line, results_to
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.pipelines.classifier import Classification
    from qkv.pipelines.mask_filler import FilledText
    from qkv.pipelines.tagger import TaggedText
    from qkv.types import Tensor


def classify(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    document: options.Documents = None,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, max=options.MAX_COUNT, help="Number of labels per input.")
    ] = 1,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Classify texts or images.

    Inputs are arguments, or the lines of a file or of standard input; each is printed as label and probability. Pass a
    text of several lines, such as a review, as an argument or with --document. For a vision Transformer (ViT) the
    inputs are image paths. With --json, each result is an object with the probabilities of all labels.
    """
    from qkv.hub.model_folder import ModelFolder, locate
    from qkv.models.vit import ViT
    from qkv.pipelines.image_classifier import BATCH_SIZE

    pictures = issubclass(ModelFolder(locate(run)).network, ViT)
    if pictures and document:
        raise InputError(f"--document requires a text model, but {run} is a ViT; pass image paths")
    lines = texts.read_texts(text, file, document, strict=strict)
    if text and not pictures and (files := [item for item in text if len(item) < 256 and Path(item).is_file()]):
        note(f"{files[0]} is classified as a text although it names a file; use --document to read the file")
    build = _image_classifier if pictures else _text_classifier
    predict = build(run, device, lines, batch_size)
    chunk = batch_size or BATCH_SIZE if pictures else texts.CHUNK
    with results_to(output):
        for number, line, answer in texts.predictions("classifying", lines, predict, chunk):
            if json:
                result_json({"input": number, "picture" if pictures else "text": line, **_classification_dict(answer)})
            else:
                ranked = [] if answer is None else [*answer.probabilities.items()][:top_k]
                result_line(*chain.from_iterable((label, f"{probability:.4f}") for label, probability in ranked))


def _text_classifier(
    run: Path, device: str, lines: Sequence[str], batch_size: int | None
) -> Callable[[list[str]], "list[Classification]"]:
    from qkv.pipelines.classifier import Classifier

    classifier = Classifier(run, device=device)
    texts.note_too_long(classifier, lines)
    return lambda chunk: classifier(chunk, batch_size=batch_size)


def _image_classifier(
    run: Path, device: str, lines: Sequence[str], batch_size: int | None
) -> Callable[[list[str]], "list[Classification]"]:
    from qkv.pipelines.image_classifier import ImageClassifier

    if missing := [line for line in lines if line.strip() and not Path(line).is_file()]:
        raise InputError(f"{missing[0]}: no such file ({len(missing)} missing)")
    classifier = ImageClassifier(run, device=device)
    return lambda paths: classifier(paths, batch_size=batch_size)


def _classification_dict(answer: "Classification | None") -> dict[str, Any]:
    """Return a classification as a JSON object."""
    if answer is None:
        return {"label": None, "probabilities": {}}
    return {
        "label": answer.label,
        "probabilities": {label: round(value, 6) for label, value in answer.probabilities.items()},
    }


def tag(
    run: options.Folder,
    text: options.Texts = None,
    file: options.ParsedInput = None,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
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

    def predict(chunk: list[str]) -> list["TaggedText"]:
        return tagger([*islice(remaining, len(chunk))] or chunk, batch_size=batch_size)

    with results_to(output):
        for number, line, answer in texts.predictions("tagging", lines, predict):
            if json:
                result_json({"input": number, "text": line, **_tagged_dict(answer)})
            else:
                pairs = () if answer is None else zip(answer.words, answer.tags, strict=True)
                result_line(" ".join(f"{word}/{tag}" for word, tag in pairs))


def _tagged_dict(answer: "TaggedText | None") -> dict[str, Any]:
    """Return a tagged text as a JSON object."""
    if answer is None:
        return {"words": [], "tags": [], "offsets": [], "entities": []}
    return {
        "words": answer.words,
        "tags": answer.tags,
        "offsets": answer.offsets,
        "entities": [asdict(entity) for entity in answer.entities],
    }


def fill(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    top_k: Annotated[int, typer.Option("--top-k", help="Number of words per mask.")] = 5,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
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

    def predict(chunk: list[str]) -> list["FilledText"]:
        return filler(chunk, top_k=top_k, batch_size=batch_size)

    with results_to(output):
        for number, line, answer in texts.predictions("filling in", lines, predict):
            if json:
                result_json({"input": number, "text": line, **_filled_dict(answer)})
            elif answer is not None:
                for mask, guesses in enumerate(answer.guesses, start=1):
                    for guess in guesses:
                        result_line(str(number), str(mask), f"{guess.probability:.4f}", guess.word)


def _filled_dict(answer: "FilledText | None") -> dict[str, Any]:
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


def embed(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", callback=options.check_output, metavar="FILE", help="Output file (.npy or .safetensors)."
        ),
    ] = None,
    pooling: Annotated[
        str, typer.Option("--pooling", metavar="POOLING", help="Pooling: mean, cls or pooler.")
    ] = "mean",
    normalize: Annotated[bool, typer.Option("--normalize/--no-normalize", help="L2-normalize the embeddings.")] = True,
    batch_size: options.BatchSize = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Compute embeddings of texts.

    Texts are arguments, or the lines of a file or of standard input. --output writes a float32 matrix with one row per
    text ("vectors" in .safetensors); an empty line gives a row of zeros. --json prints one object per text.
    """
    if output is None and not json:
        raise InputError("missing output: pass --output FILE.npy (or .safetensors), or --json to print the embeddings")
    if output is not None and output.suffix not in WRITERS:
        raise InputError(f"--output {output}: file name must end in {' or '.join(WRITERS)}")
    lines = texts.read_texts(text, file, strict=strict)

    import torch

    from qkv.pipelines.embedder import Embedder
    from qkv.runtime.files import write_atomically

    embedder = Embedder(run, device=device)
    embedder.check_pooling(pooling)
    texts.note_too_long(embedder, lines)
    vectors: list[Tensor] = []
    for number, line, vector in texts.predictions(
        "embedding",
        lines,
        lambda chunk: list(embedder(chunk, pooling=pooling, normalize=normalize, batch_size=batch_size)),
    ):
        if json:
            numbers = None if vector is None else [float(f"{value:.7g}") for value in vector.tolist()]
            result_json({"input": number, "text": line, "vector": numbers})
        if output is not None:
            vectors.append(torch.zeros(embedder.dim) if vector is None else vector)
    if output is not None:
        write_atomically(output, WRITERS[output.suffix](torch.stack(vectors)))
        if not json:
            result(str(output))


def _npy(vectors: "Tensor") -> bytes:
    import numpy as np

    data = io.BytesIO()
    np.save(data, vectors.numpy())
    return data.getvalue()


def _safetensors(vectors: "Tensor") -> bytes:
    from safetensors.torch import save

    return save({"vectors": vectors})


WRITERS: dict[str, Callable[["Tensor"], bytes]] = {".npy": _npy, ".safetensors": _safetensors}

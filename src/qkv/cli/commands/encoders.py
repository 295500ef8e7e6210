"""`qkv classify`, `tag`, `answer`, `fill` and `embed`: the commands of encoders."""

import io
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import note, result, result_json, result_line, results_to
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.datasets.examples.squad import Question
    from qkv.pipelines.classifier import Classification
    from qkv.pipelines.mask_filler import FilledText
    from qkv.pipelines.question_answerer import ExtractedAnswer
    from qkv.pipelines.story_answerer import StoryAnswer
    from qkv.types import Tensor


def classify(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    column: options.InputColumn = None,
    document: options.Documents = None,
    top_k: Annotated[
        int | None, options.count_option("--top-k", 1, "Number of labels per input [1; with --json: all].")
    ] = None,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Classify texts or images.

    Inputs are arguments, or the lines of a file or of standard input; each is printed as label and probability. Pass a
    text of several lines, such as a review, as an argument or with --document. For a vision Transformer (ViT) the
    inputs are image paths. With --json, each result is an object with the probabilities of the labels.
    """
    from qkv.pipelines.image_classifier import BATCH_SIZE

    role = texts.input_role(run)
    pictures = role == "image"
    if pictures and document:
        raise InputError(f"--document requires a text model, but {run} takes images; pass image paths")
    columns = options.parse_columns(column)
    lines = texts.read_texts(text, file, document, strict=strict, columns=columns, role=role)
    if text and not pictures and (files := [item for item in text if len(item) < 256 and Path(item).is_file()]):
        note(f"{files[0]} is classified as a text although it names a file; use --document to read the file")
    build = _image_classifier if pictures else _text_classifier
    predict = build(run, device, lines, batch_size)
    chunk = batch_size or BATCH_SIZE if pictures else texts.CHUNK
    with results_to(output):
        for number, line, answer in texts.predictions("classifying", lines, predict, chunk):
            if json:
                fields = {"label": None, "score": None, "probabilities": {}} if answer is None else answer.to_dict()
                fields["probabilities"] = dict([*fields["probabilities"].items()][:top_k])
                result_json({"input": number, "picture" if pictures else "text": line, **_without_text(fields)})
            else:
                shown = [] if answer is None else [*answer.probabilities.items()][: top_k or 1]
                result_line(*chain.from_iterable((label, f"{probability:.4f}") for label, probability in shown))


def _without_text(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a result without its input."""
    return {key: value for key, value in fields.items() if key != "text"}


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

    if folders := [line for line in lines if line.strip() and Path(line).is_dir()]:
        raise InputError(f"{folders[0]}: is a folder; pass its images, e.g. {folders[0].rstrip('/')}/*.jpg")
    if missing := [line for line in lines if line.strip() and not Path(line).is_file()]:
        raise InputError(f"{missing[0]}: no such file ({len(missing)} missing)")
    classifier = ImageClassifier(run, device=device)
    return lambda paths: classifier(paths, batch_size=batch_size)


def tag(
    run: options.Folder,
    text: options.Texts = None,
    file: options.ParsedInput = None,
    column: options.InputColumn = None,
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
    lines = [sentence.text for sentence in sentences] or texts.read_texts(
        text, file, strict=strict, columns=options.parse_columns(column)
    )

    from qkv.pipelines.tagger import TaggedText, Tagger

    tagger, remaining = Tagger(run, device=device), iter(sentences)

    def predict(chunk: list[str]) -> list[TaggedText]:
        return tagger([*islice(remaining, len(chunk))] or chunk, batch_size=batch_size)

    with results_to(output):
        for number, line, tagged in texts.predictions("tagging", lines, predict):
            answer = tagged or TaggedText(line, (), (), ())
            if json:
                result_json({"input": number, "text": line, **_without_text(answer.to_dict())})
            else:
                pairs = zip(answer.words, answer.tags, strict=True)
                result_line(" ".join(f"{word}/{tag}" for word, tag in pairs))


def answer(
    run: options.Folder,
    question: Annotated[str | None, typer.Option("--question", metavar="TEXT", help="Question.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Text that may contain the answer.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='JSON Lines file (- for stdin) with {"question": "...", "text": "..."} per line.',
        ),
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", help="Number of answers per question.")] = 1,
    max_answer_tokens: Annotated[
        int, typer.Option("--max-answer-tokens", help="Maximum number of tokens in an answer.")
    ] = 30,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Stride between windows over a long text, in tokens [half a window].")
    ] = None,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Answer questions about a text.

    The questions are --question and --text, or the lines of a file or of standard input in JSON Lines format. Prints
    one line per answer: question number, probability, start and end character offsets, and the answer span. If "no
    answer" is more likely than any span, an empty answer comes first.

    A memory network answers with a word or a list of words instead: the text is a story, and the lines have no offsets.
    With --json, each answer has the attention weights of the sentences in each hop.
    """
    questions = _read_questions(question, text, file)

    from qkv.hub.model_folder import ModelFolder, locate
    from qkv.models.memory.memory_network import MemoryNetwork
    from qkv.pipelines.inputs.windows import MAX_ANSWER_TOKENS

    settings = {"max_answer_tokens": max_answer_tokens, "stride": stride, "batch_size": batch_size}
    if not issubclass(ModelFolder(locate(run)).network, MemoryNetwork):
        _answer_spans(run, questions, output, device, json=json, top_k=top_k, **settings)
        return
    defaults = {"max_answer_tokens": MAX_ANSWER_TOKENS}
    if changed := [name for name, value in settings.items() if value != defaults.get(name)]:
        unsupported = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise InputError(f"{run} is a MemoryNetwork, which does not support {unsupported}")
    _answer_stories(run, questions, top_k, output, device, json=json)


def _answer_spans(
    run: Path, questions: "list[Question]", output: Path | None, device: str, *, json: bool, top_k: int, **settings: Any
) -> None:
    """Answer questions with spans of their texts."""
    from qkv.pipelines.question_answerer import QuestionAnswerer

    answerer = QuestionAnswerer(run, device=device)
    if cut := answerer.truncated_questions([question.question for question in questions]):
        note(f"{len(cut)} question(s) are too long and truncated, first: input {cut[0]}")
    remaining = iter(questions)

    def predict(chunk: list[str]) -> list["ExtractedAnswer"]:
        contexts = [question.text for question in islice(remaining, len(chunk))]
        return answerer(chunk, contexts, top_k=top_k, **settings)

    lines = [question.question for question in questions]
    with results_to(output):
        for number, _, extracted in texts.predictions("answering", lines, predict):
            assert extracted is not None  # no question is empty
            if json:
                result_json({"input": number, **extracted.to_dict()})
            else:
                _print_answer(number, extracted, top_k)


def _answer_stories(
    run: Path, questions: "list[Question]", top_k: int, output: Path | None, device: str, *, json: bool
) -> None:
    """Answer questions about stories with a memory network."""
    from qkv.config import require
    from qkv.pipelines.story_answerer import StoryAnswerer

    require(top_k >= 1, f"--top-k must be at least 1, not {top_k}")
    answerer, stories = StoryAnswerer(run, device=device), iter(questions)

    def predict(chunk: list[str]) -> "list[StoryAnswer]":
        return answerer(chunk, [question.text for question in islice(stories, len(chunk))])

    unknown: dict[int, tuple[str, ...]] = {}
    with results_to(output):
        for number, line, story in texts.predictions("answering", [one.question for one in questions], predict):
            assert story is not None  # no question is empty
            unknown |= {number: story.unknown} if story.unknown else {}
            if json:
                fields = story.to_dict()
                fields["candidates"] = fields["candidates"][:top_k]
                result_json({"input": number, **fields, "question": line})
                continue
            for answer, probability in [*story.probabilities.items()][:top_k]:
                result_line(str(number), f"{probability:.4f}", answer)
    texts.note_unknown_tokens(unknown)


def _read_questions(question: str | None, text: str | None, file: Path | None) -> "list[Question]":
    if question is None and text is None:
        lines = [(number, line) for number, line in enumerate(texts.read_lines(file), start=1) if line.strip()]
        return [_parse_question(line, f"{file or texts.STDIN}: line {number}") for number, line in lines]
    if file is not None:
        raise InputError("--input cannot be combined with --question and --text")
    if question is None or text is None:
        raise InputError("missing input: pass both --question and --text, or --input")
    for name, value in (("--question", question), ("--text", text)):
        if not value.strip():
            raise InputError(f"{name} is empty")
    from qkv.datasets.examples.squad import Question

    return [Question(question, text)]


def _parse_question(line: str, where: str) -> "Question":
    from qkv.datasets.examples.squad import Question
    from qkv.datasets.formats.tables import parse_json

    match parse_json(line, where):
        case {"question": str(question), "text": str(text)} if question.strip() and text.strip():
            return Question(question, text)
    raise InputError(f'{where}: expected {{"question": "...", "text": "..."}} with non-empty values')


def _print_answer(number: int, answer: "ExtractedAnswer", top_k: int) -> None:
    rows = [
        (f"{candidate.probability:.4f}", str(candidate.start), str(candidate.end), " ".join(candidate.text.split()))
        for candidate in answer.candidates
    ]
    if answer.span is None:
        rows.insert(0, (f"{answer.no_answer:.4f}", "", "", ""))
    for row in rows[:top_k]:
        result_line(str(number), *row)


def fill(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    column: options.InputColumn = None,
    top_k: Annotated[int, typer.Option("--top-k", help="Number of words per mask.")] = 5,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Predict the words at [MASK] in texts.

    Texts are arguments, or the lines of a file or of standard input. Prints one line per prediction: text number, mask
    number, probability and word. With --json, each text is an object that also has the text with all masks filled.
    """
    lines = texts.read_texts(text, file, strict=strict, columns=options.parse_columns(column))

    from qkv.pipelines.mask_filler import MaskFiller

    filler = MaskFiller(run, device=device)
    filler.check(lines)

    def predict(chunk: list[str]) -> list["FilledText"]:
        return filler(chunk, top_k=top_k, batch_size=batch_size)

    with results_to(output):
        for number, line, answer in texts.predictions("filling in", lines, predict):
            if json:
                fields = {"filled": "", "masks": []} if answer is None else _without_text(answer.to_dict())
                result_json({"input": number, "text": line, **fields})
            elif answer is not None:
                for mask, guesses in enumerate(answer.guesses, start=1):
                    for guess in guesses:
                        result_line(str(number), str(mask), f"{guess.probability:.4f}", guess.word)


def embed(
    run: options.Folder,
    text: options.Texts = None,
    file: options.Input = None,
    column: options.InputColumn = None,
    output: Annotated[
        Path | None, options.output_file("--output", "FILE", "Output file (.npy or .safetensors).")
    ] = None,
    pooling: Annotated[
        str,
        typer.Option(
            "--pooling",
            metavar="POOLING",
            autocompletion=options.complete_values("mean", "cls", "pooler"),
            help="Pooling: mean, cls or pooler.",
        ),
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
    lines = texts.read_texts(text, file, strict=strict, columns=options.parse_columns(column))

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

"""The endpoints of single tasks: translate, classify, tag, answer, caption, fill, attention."""

import base64
import binascii
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.pipelines.story_answerer import StoryAnswerer
from qkv.pipelines.translator import Translator
from qkv.serve.attention import AttentionOptions
from qkv.serve.decoding import SearchOptions, TranslationJob
from qkv.serve.errors import RESPONSES, TOO_LONG, RequestError
from qkv.serve.loaded import LoadedModel
from qkv.serve.served import Served, ServedModels, as_list, check_lengths
from qkv.serve.task_schemas import (
    AnswerCandidate,
    AnswerRequest,
    AnswerResponse,
    AttentionPayload,
    AttentionRequestBody,
    AttentionResponse,
    Caption,
    CaptionRequest,
    CaptionResponse,
    ClassificationRequest,
    ClassificationResponse,
    ClassifiedInput,
    EntityItem,
    FilledInput,
    FillRequest,
    FillResponse,
    GuessItem,
    TaggedInput,
    TaggingResponse,
    TextRequest,
    TranslatedInput,
    Translation,
    TranslationRequest,
    TranslationResponse,
)
from qkv.visualize.explorer import build_payload

router = APIRouter(tags=["Tasks"], responses=RESPONSES)


@router.post("/translate", summary="Translate texts")
async def translate(body: TranslationRequest, served: ServedModels) -> TranslationResponse:
    """Translate texts by greedy search or beam search, with any sequence-to-sequence model."""
    model, translator = served.pool.get(body.model, "/translate")
    texts = as_list(body.input)
    served.check_inputs(texts)
    config = GenerationConfig(
        num_beams=body.num_beams,
        num_return_sequences=body.num_return_sequences,
        length_penalty=body.length_penalty,
        max_new_tokens=body.max_new_tokens,
    )
    if translator.engine is None:
        answers = await served.run_texts(model, object(), texts, _translate_one_by_one(translator, body))
    else:
        answers = await _translate(body, served, model, translator, texts, config)
    results = [
        TranslatedInput(
            input=text,
            translations=[Translation(text=answer.text, score=answer.score) for answer in best],
            unknown=list(best[0].unknown),
        )
        for text, best in zip(texts, answers, strict=True)
    ]
    return TranslationResponse(model=model.name, results=results)


async def _translate(
    body: TranslationRequest,
    served: Served,
    model: LoadedModel,
    translator: Translator,
    texts: list[str],
    config: GenerationConfig,
) -> list[list[Any]]:
    """Translate texts in the decoding batch of the model."""
    sources = translator.encode(dict(enumerate(texts, start=1)), body.target)
    requests = translator.requests(sources, config, body.prefix, [0] * len(texts))
    limit = served.settings.max_tokens
    for number, request in enumerate(requests, start=1):
        if max(request.source_length, request.max_new_tokens) > limit:
            raise RequestError(400, f"input {number}: more than {limit:,} tokens", param="input", code=TOO_LONG)
    job = TranslationJob(requests, SearchOptions(body.num_beams, body.length_penalty), translator.decoding_tokens.end)
    found = await served.finish(job, model)
    return [
        [translator.answer(source, best) for best in hypotheses[: body.num_return_sequences]]
        for source, hypotheses in zip(sources, found, strict=True)
    ]


def _translate_one_by_one(translator: Translator, body: TranslationRequest) -> Callable[[list[str]], list[list[Any]]]:
    def run(texts: list[str]) -> list[list[Any]]:
        answers: list[Any] = translator(
            texts,
            target=body.target,
            num_beams=body.num_beams,
            num_return_sequences=body.num_return_sequences,
            length_penalty=body.length_penalty,
            max_new_tokens=body.max_new_tokens,
            prefix=body.prefix,
            batch_size=1,
        )
        return answers if body.num_return_sequences > 1 else [[answer] for answer in answers]

    return run


@router.post("/classify", summary="Classify texts or images")
async def classify(body: ClassificationRequest, served: ServedModels) -> ClassificationResponse:
    """Return the label of each input, with the probabilities of all labels."""
    model, classifier = served.pool.get(body.model, "/classify")
    if isinstance(classifier, ImageClassifier):
        if body.image is None or body.input is not None:
            raise RequestError(400, f"{model.name!r} classifies images: pass image, not input", param="image")
        images = [_decoded(image) for image in as_list(body.image)]
        served.check_inputs([""] * len(images), param="image")
        results = await served.run_texts(model, "classify", images, _with_files(lambda p: classifier(p, batch_size=1)))
    else:
        if body.input is None or body.image is not None:
            raise RequestError(400, f"{model.name!r} classifies texts: pass input, not image", param="input")
        texts = as_list(body.input)
        served.check_inputs(texts)
        check_lengths(classifier, texts, truncate=body.truncate)
        size = model.batch_size
        results = await served.run_texts(model, "classify", texts, lambda batch: classifier(batch, batch_size=size))
    return ClassificationResponse(
        model=model.name,
        results=[
            ClassifiedInput(label=result.label, probability=result.score, probabilities=result.probabilities)
            for result in results
        ],
    )


@router.post("/tag", summary="Tag the words of texts")
async def tag(body: TextRequest, served: ServedModels) -> TaggingResponse:
    """Return the tag of each word, and the named entities if the tags mark them."""
    model, tagger = served.pool.get(body.model, "/tag")
    texts = as_list(body.input)
    served.check_inputs(texts)
    size = model.batch_size
    results = await served.run_texts(model, "tag", texts, lambda batch: tagger(batch, batch_size=size))
    return TaggingResponse(
        model=model.name,
        results=[
            TaggedInput(
                words=list(result.words),
                tags=list(result.tags),
                offsets=list(result.offsets),
                entities=[
                    EntityItem(kind=entity.kind, text=entity.text, start=entity.start, end=entity.end)
                    for entity in result.entities
                ],
            )
            for result in results
        ],
    )


@router.post("/answer", summary="Answer a question about a text")
async def answer(body: AnswerRequest, served: ServedModels) -> AnswerResponse:
    """Return the span of a text, or the answer of a memory network, that answers a question."""
    model, answerer = served.pool.get(body.model, "/answer")
    for param in ("question", "context"):
        served.check_inputs([getattr(body, param)], param=param)
    pair = (body.question, body.context)
    if isinstance(answerer, StoryAnswerer):
        (found,) = await served.run_texts(model, "answer", [pair], _pairs(answerer))
        ranked = list(found.probabilities.items())[: body.top_k]
        candidates = [AnswerCandidate(text=text, probability=p) for text, p in ranked]
        return AnswerResponse(
            model=model.name, answer=found.text, probability=candidates[0].probability, candidates=candidates
        )
    run = _pairs(answerer, top_k=body.top_k, batch_size=model.batch_size)
    (found,) = await served.run_texts(model, ("answer", body.top_k), [pair], run)
    return AnswerResponse(
        model=model.name,
        answer=found.text,
        probability=found.score,
        candidates=[
            AnswerCandidate(text=span.text, probability=span.probability, start=span.start, end=span.end)
            for span in found.candidates
        ],
    )


def _pairs(answerer: Any, **options: Any) -> Callable[[list[tuple[str, str]]], Sequence[Any]]:
    def run(pairs: list[tuple[str, str]]) -> Sequence[Any]:
        results: Sequence[Any] = answerer(
            [question for question, _ in pairs], [context for _, context in pairs], **options
        )
        return results

    return run


@router.post("/caption", summary="Describe an image")
async def caption(body: CaptionRequest, served: ServedModels) -> CaptionResponse:
    """Return captions of an image, best first."""
    model, captioner = served.pool.get(body.model, "/caption")
    image = _decoded(body.image)
    options = {"num_beams": body.num_beams, "num_return_sequences": body.num_return_sequences, "batch_size": 1}
    (found,) = await served.run_texts(model, object(), [image], _with_files(lambda paths: captioner(paths, **options)))
    captions = found if isinstance(found, list) else [found]
    return CaptionResponse(model=model.name, captions=[Caption(text=best.text, score=best.score) for best in captions])


def _decoded(image: str) -> bytes:
    """Return the bytes of a base64 text, which may be a data URL."""
    try:
        return base64.b64decode(image.partition(",")[2] if image.startswith("data:") else image, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(400, "image: is not base64", param="image") from None


def _with_files(run: Callable[[list[Path]], Sequence[Any]]) -> Callable[[list[bytes]], Sequence[Any]]:
    """Return a function of images from a function of image files."""

    def call(images: list[bytes]) -> Sequence[Any]:
        with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
            paths = [Path(folder) / f"image {number}" for number in range(1, len(images) + 1)]
            for path, image in zip(paths, images, strict=True):
                path.write_bytes(image)
            try:
                return run(paths)
            except InputError as error:
                raise InputError(str(error).replace(f"{folder}/", ""), field="image") from None

    return call


@router.post("/fill", summary="Fill masks")
async def fill(body: FillRequest, served: ServedModels) -> FillResponse:
    """Return the most probable words for each [MASK] of texts."""
    model, filler = served.pool.get(body.model, "/fill")
    texts = as_list(body.input)
    served.check_inputs(texts)
    size, top_k = model.batch_size, body.top_k
    results = await served.run_texts(
        model, ("fill", top_k), texts, lambda batch: filler(batch, top_k=top_k, batch_size=size)
    )
    return FillResponse(
        model=model.name,
        results=[
            FilledInput(
                filled=result.filled,
                masks=[
                    [GuessItem(word=guess.word, probability=guess.probability) for guess in guesses]
                    for guesses in result.guesses
                ],
            )
            for result in results
        ],
    )


@router.post(
    "/attention",
    summary="Show the attention of an input",
    response_model=None,  # a payload is large, and valid
    responses={200: {"model": AttentionResponse, "description": "The payload of the explorer."}},
)
async def attention(body: AttentionRequestBody, served: ServedModels) -> AttentionPayload:
    """Return the attention maps of an input in the format of the explorer page, with heads ablated or tokens masked."""
    model, attend = served.pool.get(body.model, "/attention")
    served.check_inputs([body.input])
    options = AttentionOptions(
        body.options.layer,
        tuple((head.layer, head.head) for head in body.options.ablate),
        tuple(sorted(set(body.options.mask))),
    )
    (payload,) = await served.run_texts(
        model,
        object(),
        [body.input],
        lambda texts: [build_payload([attend(texts[0], options)], model=model.name)],
    )
    result: AttentionPayload = payload
    return result

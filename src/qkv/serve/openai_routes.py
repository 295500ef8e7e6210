"""The endpoints that are compatible with the OpenAI API: models, completions and embeddings."""

import asyncio
import base64
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from qkv.generation import Sampling
from qkv.pipelines.embedder import Embedder
from qkv.pipelines.generator import Generator
from qkv.serve.completion import CompletionJob, CompletionOptions
from qkv.serve.decoding import Chunk, ScoredToken
from qkv.serve.errors import RESPONSES, TOO_LONG, RequestError, describe, error_body, timed_out
from qkv.serve.loaded import LoadedModel
from qkv.serve.openai_schemas import (
    Choice,
    Completion,
    CompletionRequest,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    Logprobs,
    ModelCard,
    ModelList,
    Usage,
)
from qkv.serve.served import Served, ServedModels, as_list, check_lengths
from qkv.tokenizers import Tokenizer

DEFAULT_TOKENS = 16
router = APIRouter(prefix="/v1", tags=["OpenAI-compatible"])


@router.get("/models", summary="List the loaded models", responses={401: RESPONSES[401], 503: RESPONSES[503]})
async def list_models(served: ServedModels) -> ModelList:
    """Return the loaded models, and the endpoints of each."""
    models = served.pool.models.values()
    return ModelList(data=[ModelCard(created=model.loaded_at, **model.describe()) for model in models])


@router.get(
    "/models/{name:path}",
    summary="Describe a loaded model",
    responses={status: RESPONSES[status] for status in (401, 404, 503)},
)
async def retrieve_model(name: str, served: ServedModels) -> ModelCard:
    """Return a loaded model and its endpoints."""
    model = served.pool.find(name)
    return ModelCard(created=model.loaded_at, **model.describe())


@router.post(
    "/completions",
    summary="Continue prompts",
    response_model=Completion,
    responses={**RESPONSES, 200: {"content": {"text/event-stream": {}}}},
)
async def complete(body: CompletionRequest, served: ServedModels) -> Any:
    """Continue a prompt, or several, with a language model.

    Answers depend on the request and its seed only. With `stream`, each event is a completion with new text, and the
    last one is [DONE].
    """
    model, generator = served.pool.get(body.model, "/v1/completions")
    encoded = _prompts(body, served, generator)
    prompts = [prompt.ids for prompt in encoded]
    options = _options(body, prompts, served, generator)
    served.metrics.prompt_tokens.labels(model.name).inc(sum(map(len, prompts)))
    answer = _Answer(body, generator.tokenizer, encoded)
    if body.echo and body.logprobs is not None:
        run = _PromptScores(generator, body.logprobs)
        answer.prompt_scores = await served.run_texts(model, ("scores", body.logprobs), prompts, run)
    job = CompletionJob(generator, prompts, options) if options.max_new_tokens else None
    if body.stream:
        if job is not None:
            model.worker.submit(job)
        events = _events(answer, job, served.settings.timeout)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    chunks = await served.finish(job, model) if job is not None else answer.empty()
    return answer.completion([answer.choice(chunk, first=True) for chunk in chunks], usage=answer.usage(chunks))


class _Prompt(NamedTuple):
    text: str
    ids: list[int]
    unknown: tuple[str, ...] = ()  # characters or words that are not in the vocabulary


def _prompts(body: CompletionRequest, served: Served, generator: Generator) -> list[_Prompt]:
    """Return the prompts with their token ids."""
    for name, unset in (("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        if getattr(body, name) != unset:
            raise RequestError(400, f"{name} is not supported: it must be 0", param=name)
    for name in ("logit_bias", "suffix"):
        if getattr(body, name):
            raise RequestError(400, f"{name} is not supported", param=name)
    if body.best_of not in (None, body.n):
        raise RequestError(400, f"best_of must be equal to n = {body.n}", param="best_of")
    prompt: Any = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if prompt and isinstance(prompt[0], int):
        prompt = [prompt]
    if prompt and isinstance(prompt[0], list):
        served.check_inputs([""] * len(prompt), body.n, "prompt")
        vocabulary = len(generator.tokenizer)
        for token in (token for ids in prompt for token in ids):
            if token >= vocabulary:
                raise RequestError(400, f"prompt: token {token} is not in the vocabulary", param="prompt")
        return [_Prompt(generator.tokenizer.decode(tokens), list(tokens)) for tokens in prompt]
    served.check_inputs(prompt, body.n, "prompt")
    encodings = generator.tokenizer.encode_with_offsets(prompt, add_special_tokens=True)
    if not all(encoding.ids for encoding in encodings):
        raise RequestError(400, "prompt: an empty text has no tokens to continue", param="prompt")
    unknown = map(generator.tokenizer.unknown_pieces, encodings)
    return [_Prompt(text, encoding.ids, part) for text, encoding, part in zip(prompt, encodings, unknown, strict=True)]


def _options(
    body: CompletionRequest, prompts: Sequence[Sequence[int]], served: Served, generator: Generator
) -> CompletionOptions:
    longest = max(map(len, prompts))
    limit, context = served.settings.max_tokens, generator.model.max_length
    if context is not None and longest > context:
        raise RequestError(
            400,
            f"a prompt of {longest:,} tokens exceeds the model's context of {context:,}",
            param="prompt",
            code=TOO_LONG,
        )
    if context is not None:
        limit = min(limit, context + 1)  # the last token is not processed
    new_tokens = min(DEFAULT_TOKENS, max(1, limit - longest)) if body.max_tokens is None else body.max_tokens
    if longest + new_tokens > limit:
        raise RequestError(
            400,
            f"a prompt of {longest:,} tokens and max_tokens = {new_tokens:,} exceed the limit of {limit:,} tokens",
            param="max_tokens",
            code=TOO_LONG,
        )
    if new_tokens == 0 and not body.echo:
        raise RequestError(400, "max_tokens must be at least 1 without echo", param="max_tokens")
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
    sampling = Sampling(
        temperature=body.temperature, top_k=body.top_k, top_p=None if body.top_p == 1 else body.top_p, seed=seed
    )
    stops = () if body.stop is None else tuple(stop for stop in as_list(body.stop) if stop)
    return CompletionOptions(
        new_tokens, sampling, body.n, body.logprobs or 0, body.logprobs is not None, stops, body.stream
    )


class _PromptScores:
    """Log-probabilities of the tokens of prompts, computed prompt by prompt."""

    def __init__(self, generator: Generator, alternatives: int) -> None:
        self._model, self._alternatives = generator.model, alternatives

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]]) -> list[list[ScoredToken]]:
        return [self._scores(prompt) for prompt in prompts]

    def _scores(self, prompt: list[int]) -> list[ScoredToken]:
        scores = [ScoredToken(prompt[0], None, {}, 0)]
        if len(prompt) == 1:
            return scores
        tokens = torch.tensor([prompt], device=self._model.device)
        log_p = self._model(tokens[:, :-1])[0].float().log_softmax(dim=-1)
        best = log_p.topk(min(max(1, self._alternatives), log_p.shape[1]))
        chosen = log_p.gather(1, tokens[0, 1:, None])[:, 0].tolist()
        for token, score, ids, values in zip(
            prompt[1:], chosen, best.indices.tolist(), best.values.tolist(), strict=True
        ):
            alternatives = dict(zip(ids[: self._alternatives], values[: self._alternatives], strict=True))
            scores.append(ScoredToken(token, score, alternatives, 0))
        return scores


class _Answer:
    """Builds the responses to one completion request."""

    def __init__(self, body: CompletionRequest, tokenizer: Tokenizer, prompts: list[_Prompt]) -> None:
        self._body, self._tokenizer, self._prompts = body, tokenizer, prompts
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self.prompt_scores: list[list[ScoredToken]] = []
        self.include_usage = body.stream_options is not None and body.stream_options.include_usage

    def completion(self, choices: list[Choice], usage: Usage | None = None) -> Completion:
        return Completion(id=self._id, created=self._created, model=self._body.model, choices=choices, usage=usage)

    def empty(self) -> list[Chunk]:
        """Return the chunks of a request without new tokens."""
        return [Chunk(index, "", [], "length") for index in range(len(self._prompts) * self._body.n)]

    def choice(self, chunk: Chunk, *, first: bool) -> Choice:
        """Return a chunk as a choice; the first one of a sequence begins with its prompt if that is echoed."""
        number = chunk.index // self._body.n
        prompt = self._prompts[number]
        echo = prompt.text if self._body.echo else ""
        scores = None
        if self._body.logprobs is not None:
            before = self.prompt_scores[number] if first and self.prompt_scores else []
            scores = self._logprobs(before, chunk.tokens, echo)
        text = echo + chunk.text if first else chunk.text
        return Choice(
            index=chunk.index,
            text=text,
            logprobs=scores,
            finish_reason=chunk.finish_reason,  # type: ignore[arg-type]
            unknown=list(prompt.unknown),
        )

    def _logprobs(self, prompt: Sequence[ScoredToken], new: Sequence[ScoredToken], echo: str) -> Logprobs:
        names = self._tokenizer.piece
        top = [
            None if token.log_p is None else {names(other): p for other, p in token.alternatives.items() if _finite(p)}
            for token in (*prompt, *new)
        ]
        return Logprobs(
            tokens=[names(token.token) for token in (*prompt, *new)],
            token_logprobs=[token.log_p if token.log_p is None or _finite(token.log_p) else None
                            for token in (*prompt, *new)],
            top_logprobs=top if self._body.logprobs else None,
            text_offset=[*self._prompt_offsets(prompt), *(len(echo) + token.offset for token in new)],
        )  # fmt: skip

    def _prompt_offsets(self, prompt: Sequence[ScoredToken]) -> list[int]:
        return [len(self._tokenizer.decode([token.token for token in prompt[:end]])) for end in range(len(prompt))]

    def usage(self, chunks: Sequence[Chunk]) -> Usage:
        prompt = sum(len(prompt.ids) for prompt in self._prompts)
        new = sum(chunk.new_tokens for chunk in chunks)
        return Usage(prompt_tokens=prompt, completion_tokens=new, total_tokens=prompt + new)


def _finite(value: float) -> bool:
    return math.isfinite(value)


async def _events(answer: _Answer, job: CompletionJob | None, timeout: float) -> AsyncIterator[str]:
    """Yield the chunks of a stream as server-sent events."""
    deadline, started, last = time.monotonic() + timeout, set[int](), dict[int, Chunk]()
    chunks = [] if job is not None else answer.empty()
    try:
        while True:
            if job is not None:
                chunk = await _next_chunk(job, deadline, timeout)
                chunks = [] if chunk is None else [chunk]
            for part in chunks:
                last[part.index] = part
                yield _event(answer.completion([answer.choice(part, first=part.index not in started)]).model_dump())
                started.add(part.index)
            if job is None or not chunks:
                break
        if answer.include_usage:
            yield _event(answer.completion([], answer.usage([*last.values()])).model_dump())
        yield "data: [DONE]\n\n"
    except Exception as error:  # the status has been sent already
        yield _event(error_body(*describe(error)))
    finally:
        if job is not None:
            job.cancelled = True


async def _next_chunk(job: CompletionJob, deadline: float, timeout: float) -> Chunk | None:
    try:
        chunk = await asyncio.wait_for(job.chunks.get(), max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise timed_out(timeout) from None
    if isinstance(chunk, BaseException):
        raise chunk
    return chunk


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"


@router.post("/embeddings", summary="Embed texts", responses=RESPONSES)
async def embed(body: EmbeddingRequest, served: ServedModels) -> EmbeddingList:
    """Return a vector of unit length for each text, close for texts of similar meaning."""
    model, embedder = served.pool.get(body.model, "/v1/embeddings")
    texts = as_list(body.input)
    served.check_inputs(texts)
    if body.dimensions not in (None, embedder.dim):
        raise RequestError(
            400, f"dimensions = {body.dimensions}: the embeddings have {embedder.dim}", param="dimensions"
        )
    check_lengths(embedder, texts, truncate=body.truncate)
    embedder.check_pooling(body.pooling)
    run = _Embed(embedder, body.pooling, model)
    results = await served.run_texts(model, ("embed", body.pooling), texts, run)
    tokens = sum(count for _, count in results)
    served.metrics.prompt_tokens.labels(model.name).inc(tokens)
    data = [
        Embedding(index=index, embedding=_encoded(vector) if body.encoding_format == "base64" else vector.tolist())
        for index, (vector, _) in enumerate(results)
    ]
    return EmbeddingList(data=data, model=body.model, usage=Usage(prompt_tokens=tokens, total_tokens=tokens))


class _Embed:
    """Embeds texts; returns each vector with the number of tokens of its text."""

    def __init__(self, embedder: Embedder, pooling: str, model: LoadedModel) -> None:
        self._embedder, self._pooling, self._batch_size = embedder, pooling, model.batch_size

    def __call__(self, texts: list[str]) -> list[tuple[np.ndarray[Any, Any], int]]:
        vectors = self._embedder(texts, pooling=self._pooling, batch_size=self._batch_size).numpy()
        lengths = [len(ids) for ids in self._embedder.encoder.fresh_copy().encode(texts)]
        most = self._embedder.max_tokens
        return [(vector, min(length, most)) for vector, length in zip(vectors, lengths, strict=True)]


def _encoded(vector: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()

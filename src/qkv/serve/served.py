"""What the endpoints share: the models, the limits, and how a request waits for its result."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from qkv.pipelines.pipeline import TextPipeline
from qkv.serve.errors import TOO_LONG, RequestError, timed_out
from qkv.serve.loaded import LoadedModel, ModelPool
from qkv.serve.metrics import Metrics
from qkv.serve.settings import ServeSettings
from qkv.serve.worker import Job, TextsJob

MAX_CHARACTERS = 2**16  # of one text: tokenizing takes time before any other limit applies


@dataclass
class Served:
    """The models of an app, with its settings and metrics."""

    pool: ModelPool
    settings: ServeSettings
    metrics: Metrics

    async def finish(self, job: Job, model: LoadedModel) -> Any:
        """Submit a job and return its result; cancel it after the time limit."""
        model.worker.submit(job)
        try:
            return await asyncio.wait_for(job.result, self.settings.timeout)
        except TimeoutError:
            raise timed_out(self.settings.timeout) from None
        finally:
            job.cancelled = True  # has no effect on a finished job

    async def run_texts(
        self,
        model: LoadedModel,
        key: Hashable,
        inputs: Sequence[Any],
        run: Callable[[list[Any]], Sequence[Any]],
    ) -> list[Any]:
        """Run a function from a list to a list, together with other requests of the same key."""
        results: list[Any] = await self.finish(TextsJob(key, inputs, run), model)
        return results

    def check_inputs(self, texts: Sequence[str], samples: int = 1, param: str = "input") -> None:
        """Raise if there are no texts, too many, or one that is too long."""
        if not texts:
            raise RequestError(400, f"{param}: no texts", param=param)
        most = min(self.settings.max_inputs, self.settings.max_queue)
        if len(texts) * samples > most:
            raise RequestError(
                400,
                f"{param}: {len(texts) * samples:,} sequences exceed the limit of {most:,} per request",
                param=param,
            )
        for number, text in enumerate(texts, start=1):
            if len(text) > MAX_CHARACTERS:
                raise RequestError(
                    400,
                    f"{param}: text {number} has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}",
                    param=param,
                )


def check_lengths(pipeline: TextPipeline, texts: Sequence[str], *, truncate: bool) -> None:
    """Raise if a text is longer than the maximum of a model, unless it may be truncated."""
    if not truncate and (numbers := pipeline.too_long(texts)):
        raise RequestError(
            400,
            f"input {numbers[0]} has more than {pipeline.max_tokens:,} {pipeline.unit}, the maximum of the model: "
            "shorten it or set truncate",
            param="input",
            code=TOO_LONG,
        )


def _served(request: Request) -> Served:
    served: Served | None = request.app.state.served
    if served is None:
        raise RequestError(503, "the models are being loaded, or the server is stopping", code="not_ready")
    return served


ServedModels = Annotated[Served, Depends(_served)]


def as_list(value: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [value] if isinstance(value, str) else value

"""The ASGI application."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Literal

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, Field

from qkv import __version__
from qkv.serve import openai_routes, task_routes
from qkv.serve.api_page import POLICY, Server, api_page
from qkv.serve.errors import RESPONSES, RequestError, add_handlers
from qkv.serve.loaded import ModelPool
from qkv.serve.metrics import Metrics
from qkv.serve.middleware import AnswerHead, LimitBody, Measure, RequireKey
from qkv.serve.served import Served, ServedModels
from qkv.serve.settings import ServeSettings
from qkv.visualize.explorer import served_page

DESCRIPTION = """Translation, generation, classification and attention with models of qkv.

Requests share batches, but every answer is the one that the request would get alone."""
DEFAULTS = ServeSettings()
status_router = APIRouter(tags=["Status"])


class Health(BaseModel):
    """The process runs."""

    status: Literal["ok"] = Field(default="ok", description="Always ok.")
    version: str = Field(description="Version of qkv.", examples=[__version__])


class Ready(BaseModel):
    """All models are loaded."""

    status: Literal["ready"] = Field(default="ready", description="Always ready.")


def create_app(
    models: Sequence[str] | ModelPool, settings: ServeSettings = DEFAULTS, metrics: Metrics | None = None
) -> FastAPI:
    """Return the application for models, which are loaded when it starts unless they are loaded already."""
    metrics = metrics or Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pool = models if isinstance(models, ModelPool) else ModelPool(models, settings, metrics)
        app.state.served = Served(pool, settings, metrics)
        yield
        app.state.served = None
        await anyio.to_thread.run_sync(pool.close)

    app = FastAPI(
        title="qkv", version=__version__, description=DESCRIPTION, lifespan=lifespan, redoc_url=None, docs_url=None,
        responses={} if not settings.api_keys else {401: RESPONSES[401]},
    )  # fmt: skip
    app.state.served = None
    for router in (status_router, openai_routes.router, task_routes.router):
        app.include_router(router)
    add_handlers(app)
    app.add_middleware(AnswerHead)
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes)
    if settings.api_keys:
        app.add_middleware(RequireKey, keys=settings.api_keys)
    app.add_middleware(Measure, metrics=metrics, endpoints=_paths_of(app), access_log=settings.access_log)
    _correct_schema(app, keys=bool(settings.api_keys))
    return app


def _paths_of(app: FastAPI) -> Callable[[], frozenset[str]]:
    """Return a function that returns the paths of all endpoints."""

    @cache
    def paths() -> frozenset[str]:
        return frozenset((*app.openapi()["paths"], "/docs", "/openapi.json"))

    return paths


def _correct_schema(app: FastAPI, *, keys: bool) -> None:
    """Remove the status 422 from the OpenAPI description, since invalid bodies get 400, and add the API key."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        schema = original()
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):  # the bodies of that status
            schema.get("components", {}).get("schemas", {}).pop(name, None)
        if keys:
            schema.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


@status_router.get("/", response_class=HTMLResponse, summary="The explorer")
async def explorer(served: ServedModels) -> HTMLResponse:
    """Return the page that shows the attention of typed inputs."""
    models = [model for model in served.pool.models.values() if "/attention" in model.pipelines]
    inputs = {model.name: model.example_input for model in models}
    return HTMLResponse(served_page([*inputs], inputs=inputs))


@status_router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Return the OpenAPI description as a page."""
    served: Served | None = request.app.state.served
    models = served.pool.by_endpoint() if served else {}
    page = api_page(Server(request.app.openapi(), request.url.netloc, models))
    return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})


@status_router.get("/health", summary="Liveness check")
async def health() -> Health:
    """Return status 200 as long as the process answers."""
    return Health(version=__version__)


@status_router.get("/ready", summary="Readiness check", responses={503: RESPONSES[503]})
async def ready(request: Request) -> Ready:
    """Return status 200 if all models are loaded, else 503."""
    served: Served | None = request.app.state.served
    if served is None or not served.pool.ready:
        raise RequestError(503, "the models are being loaded, or the server is stopping", code="not_ready")
    return Ready()


@status_router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(served: ServedModels) -> Response:
    """Return counters in the text format of Prometheus."""
    return Response(served.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

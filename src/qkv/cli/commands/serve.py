"""`qkv serve`: an HTTP server for models."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.console import info, note
from qkv.errors import InputError

INSTALL = "qkv serve requires {}: pip install 'qkv[serve]'"


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        autocompletion=options.complete_runs,
        help="Training runs, saved models or Hub names; NAME=MODEL sets the name in requests.",
    ),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")]
MaxBatch = Annotated[int, typer.Option("--max-batch", help="Sequences, or texts, of a model that are run at once.")]
MaxQueue = Annotated[int, typer.Option("--max-queue", help="Accepted sequences of a model; more are refused with 429.")]
MaxInputs = Annotated[int, typer.Option("--max-inputs", help="Sequences, or texts, of one request.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Tokens of a sequence, the prompt included.")]
MaxBody = Annotated[int, typer.Option("--max-body", help="Bytes of the body of a request.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds until a request is given up with 503.")]
ApiKeys = Annotated[
    Path | None,
    typer.Option("--api-keys", metavar="FILE", help="File with one API key per line [QKV_API_KEYS, by commas]."),
]
BatchAll = Annotated[
    bool,
    typer.Option(
        "--batch-all",
        help="Batch recurrent and convolutional models, too; their results may then differ in the last digits.",
    ),
]


def serve(
    models: Models,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    max_batch: MaxBatch = 32,
    max_queue: MaxQueue = 256,
    max_inputs: MaxInputs = 64,
    max_tokens: MaxTokens = 2048,
    max_body: MaxBody = 4 * 2**20,
    timeout: Timeout = 60.0,
    api_keys: ApiKeys = None,
    batch_all: BatchAll = False,
    dtype: options.DType = options.DecodingDType.auto,
    device: options.Device = "auto",
) -> None:
    """Serve models over HTTP.

    OpenAI-compatible /v1/completions and /v1/embeddings, /translate, /classify, /tag, /answer, /caption, /fill and
    /attention; /docs lists them. GET / is a page that shows attention. Requests share batches; SIGTERM or Ctrl-C
    finishes those that were accepted.
    """
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise InputError(INSTALL.format(package))
    from qkv.serve.settings import KEYS_VARIABLE, ServeSettings, read_api_keys

    settings = ServeSettings(
        dtype=dtype.value,
        device=device,
        max_batch=max_batch,
        max_queue=max_queue,
        max_inputs=max_inputs,
        max_tokens=max_tokens,
        max_body_bytes=max_body,
        timeout=timeout,
        batch_all=batch_all,
        api_keys=read_api_keys(api_keys),
    )
    from qkv.serve.app import create_app
    from qkv.serve.loaded import ModelPool
    from qkv.serve.metrics import Metrics
    from qkv.serve.server import bind, is_loopback, run_server

    listener = bind(host, port)
    if not is_loopback(host) and not settings.api_keys:
        note(f"everyone who can reach {host} can use the models: set {KEYS_VARIABLE} or --api-keys")
    metrics = Metrics()
    pool = ModelPool(models, settings, metrics)
    for model in pool.models.values():
        info(f"{model.name}: {model.kind}, {' '.join(sorted(model.pipelines))}")
    run_server(create_app(pool, settings, metrics), metrics, listener, grace=timeout, report=info)

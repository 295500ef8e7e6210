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
        autocompletion=options.complete_models,
        help="Training runs, saved models, pretrained models or Hub names; NAME=MODEL sets the name in requests.",
    ),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")]
MaxBatch = Annotated[int, typer.Option("--max-batch", help="Maximum number of sequences or texts in a batch.")]
MaxQueue = Annotated[
    int, typer.Option("--max-queue", help="Maximum number of pending sequences of a model; others get 429.")
]
MaxInputs = Annotated[int, typer.Option("--max-inputs", help="Maximum number of sequences or texts in a request.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Maximum number of tokens of a sequence and its prompt.")]
MaxBody = Annotated[int, typer.Option("--max-body", help="Maximum size of a request body in bytes.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Time limit of a request in seconds; then it gets 503.")]
ApiKeys = Annotated[
    Path | None,
    typer.Option(
        "--api-keys", metavar="FILE", help="File with one API key per line [QKV_API_KEYS, separated by commas]."
    ),
]
BatchAll = Annotated[
    bool,
    typer.Option(
        "--batch-all",
        help="Batch recurrent and convolutional models, too; their results may then differ in the last digits.",
    ),
]

AccessLog = Annotated[
    bool, typer.Option("--access-log", help="Log a line per request: method, path, status, milliseconds.")
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
    access_log: AccessLog = False,
    dtype: options.DType = options.DecodingDType.auto,
    device: options.Device = "auto",
) -> None:
    """Serve models over HTTP.

    OpenAI-compatible /v1/completions and /v1/embeddings, /translate, /classify, /tag, /answer, /caption, /fill and
    /attention; /docs lists them. GET / is a page that shows attention. Requests are batched. On SIGTERM or
    Ctrl-C, the server finishes the accepted requests and exits.
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
        access_log=access_log,
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

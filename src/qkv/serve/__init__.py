"""An HTTP server for models: `qkv serve MODEL...`, or `create_app(models)` in any ASGI server.

Each model runs in a thread of its own (`worker.py`), which the requests of all connections share: sequences join a
decoding batch as soon as a row is free (continuous batching), and the texts of encoders that arrive during a batch form
the next one. Models take turns, so that all cores work on one step at a time.

On CPUs, every answer is the one that the request would get alone; on GPUs, all models are batched. The CPU kernels of
the decoding engine compute each row in the same way whatever the other rows are, encoders batch texts of one width, and
random numbers depend on the seed of a request and the indices of its prompt and its sample only. Recurrent and
convolutional models, whose products PyTorch rounds differently in other batches, are run one request at a time unless
`batch_all` is set.

    GET  /                   the explorer page: attention of typed inputs
    GET  /v1/models          OpenAI-compatible; also /v1/completions and /v1/embeddings (POST)
    POST /translate, /classify, /tag, /answer, /caption, /fill, /attention
    GET  /health, /ready     the process runs | requests are accepted
    GET  /metrics            Prometheus
    GET  /docs               OpenAPI page; /openapi.json

/attention takes {model, input, options} with the options {layer, ablate: [{layer, head}], mask: [token indices]} and
returns the JSON value that the explorer shows: see `qkv.visualize.explorer`.

An error is {"error": {"message", "type", "param", "code"}}; 429 and 503 have a Retry-After header.
"""

from qkv.serve.app import create_app
from qkv.serve.settings import ServeSettings

__all__ = ["ServeSettings", "create_app"]

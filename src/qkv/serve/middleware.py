"""What happens to every request: API keys, the size of the body, metrics."""

import hmac
import logging
import time
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.runtime.text import printable
from qkv.serve.errors import error_response
from qkv.serve.metrics import NO_ANSWER, Metrics

OPEN = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})  # need no API key: they run no model
MAX_PATH = 200  # characters of a path in the log
log = logging.getLogger("qkv.serve.access")
OTHER = "other"  # endpoint of unknown paths in the metrics


class RequireKey:
    """Refuses requests without one of the API keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._accepts(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "missing or unknown API key: send the header Authorization: Bearer KEY"
        await error_response(401, message, code="invalid_api_key")(scope, receive, send)

    def _accepts(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        sent = (key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")).encode("latin-1", "replace")
        # All keys are compared, each in constant time, so that the time does not depend on them.
        return any([hmac.compare_digest(sent, known) for known in self._keys])  # noqa: C419


class AnswerHead:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


class LimitBody:
    """Refuses bodies of more than a number of bytes, whether their length is declared or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdecimal() or int(declared) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:  # bodies are small: they are read before the endpoint is called
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_bytes:
                await self._refuse(scope, receive, send)
                return
        messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"the body is larger than the limit of {self._max_bytes:,} bytes"
        response = error_response(413, message, code="body_too_large")
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


class Measure:
    """Counts requests by endpoint and status, measures their time, and logs them with `access_log`."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, endpoints: Callable[[], frozenset[str]], *, access_log: bool
    ) -> None:
        self._app, self._metrics, self._endpoints, self._access_log = app, metrics, endpoints, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        endpoint = scope["path"] if scope["path"] in self._endpoints() else OTHER
        status, begin = NO_ANSWER, time.perf_counter()

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        with self._metrics.in_progress.track_inprogress():
            try:
                await self._app(scope, receive, observe)
            finally:
                seconds = time.perf_counter() - begin
                self._metrics.requests.labels(endpoint, status).inc()
                self._metrics.seconds.labels(endpoint).observe(seconds)
                if self._access_log:
                    path = printable(scope["path"], MAX_PATH)
                    log.info("%s %s %s %.0f ms", scope["method"], path, status, 1000 * seconds)

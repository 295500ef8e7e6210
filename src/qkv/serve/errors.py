"""Errors of requests, in the format of the OpenAI API."""

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException

from qkv.errors import InputError, InputTooLongError, QkvError
from qkv.registry import nearest
from qkv.runtime.text import printable

RETRY_SECONDS = 1  # in the header Retry-After
MAX_MESSAGE = 1000
MAX_PROBLEMS = 3  # of a body in one message
MISSPELLED = 0.8  # similarity of a field to an unknown one that is a misspelling of it
TOO_LONG = "context_length_exceeded"
FIELDS = {"story": "context", "layer": "options.layer", "mask": "options.mask"}  # where requests name them otherwise
log = logging.getLogger("qkv.serve")


class RequestError(Exception):
    """A request that is refused; the client sees the message."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class ErrorDetail(BaseModel):
    """What is wrong with a request."""

    message: str = Field(description="What is wrong, and what to do.", examples=["input is required"])
    type: str = Field(
        description="invalid_request_error, authentication_error, rate_limit_error or server_error",
        examples=["invalid_request_error"],
    )
    param: str | None = Field(default=None, description="The field of the request, if it is one.", examples=["input"])
    code: str | None = Field(
        default=None, description=f"A code for programs, such as {TOO_LONG}, if there is one.", examples=[None]
    )


class ErrorResponse(BaseModel):
    """The body of every answer with a status of 400 or more."""

    error: ErrorDetail = Field(description="What is wrong.")


DESCRIPTIONS = {
    400: "The body does not have the format of the endpoint, or the model cannot process the input.",
    401: "Missing or unknown API key.",
    404: "No model of this name is loaded.",
    413: "The body is too large.",
    429: "Too many requests are waiting: try again after the seconds in Retry-After.",
    503: "The request took too long, or the server is stopping: try again after the seconds in Retry-After.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text} for status, text in DESCRIPTIONS.items()
}


def overloaded(model: str, limit: int) -> RequestError:
    """Return the error for a full queue."""
    return RequestError(
        429, f"the queue of {model!r} is full ({limit:,} sequences): try again later", code="queue_full"
    )


def timed_out(seconds: float) -> RequestError:
    """Return the error for a request that took too long."""
    return RequestError(503, f"the request was not finished within {seconds:g} s: try again later", code="timeout")


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the JSON value of an error."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, kind)
    text = printable(message, MAX_MESSAGE)
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def error_headers(status: int) -> dict[str, str]:
    """Return the headers of an error: when to try again, or how to authenticate."""
    if status in (429, 503):
        return {"Retry-After": str(RETRY_SECONDS)}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}


def error_response(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    """Return the answer to a request that failed."""
    return JSONResponse(error_body(status, message, param, code), status, error_headers(status))


def describe(error: BaseException) -> tuple[int, str, str | None, str | None]:
    """Return the status, message, parameter and code of an exception; unexpected ones are logged, not shown."""
    if isinstance(error, RequestError):
        return error.status, str(error), error.param, error.code
    if isinstance(error, InputError):
        param = None if error.field is None else FIELDS.get(error.field, error.field)
        return 400, str(error), param, TOO_LONG if isinstance(error, InputTooLongError) else None
    log.error("request failed", exc_info=error)
    status = 503 if isinstance(error, QkvError | MemoryError) else 500
    return status, "internal error: see the log of the server", None, None


def add_handlers(app: FastAPI) -> None:
    """Answer all errors in one format."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return error_response(*describe(error))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = error_response(error.status_code, _http_message(request, error))
        response.headers.update(error.headers or {})
        if response.headers.get("Allow") == "GET":
            response.headers["Allow"] = "GET, HEAD"
        return response

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        sent = error.body if isinstance(error.body, dict) else {}
        unsent = {name: field for name, field in _fields(request).items() if name not in sent}
        problems = [_problem(details, unsent) for details in error.errors()[:MAX_PROBLEMS]]
        return error_response(400, "; ".join(message for _, message in problems), problems[0][0])

    for kind in (RequestError, QkvError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)


def _http_message(request: Request, error: HTTPException) -> str:
    """Return the message of an error of routing, with what was probably meant."""
    path = request.url.path
    if error.status_code == 404:
        return f"unknown path {path}{nearest(path[:100], [*request.app.openapi()['paths'], '/docs'])}"
    if error.status_code == 405:
        return f"{path} does not take {request.method}: use {(error.headers or {}).get('Allow', 'another method')}"
    return str(error.detail)


def _fields(request: Request) -> dict[str, FieldInfo]:
    """Return the fields of the body of a request, by name."""
    body = getattr(request.scope.get("route"), "body_field", None)
    annotation = getattr(getattr(body, "field_info", None), "annotation", None)
    return dict(getattr(annotation, "model_fields", {}))


def _problem(details: Mapping[str, Any], unsent: Mapping[str, FieldInfo]) -> tuple[str | None, str]:
    """Return the field of an error of validation, None if it is the whole body, and a message.

    `unsent` are the fields that the body lacks, one of which an unknown field may be meant for.
    """
    if details["type"] == "json_invalid":
        return None, f"the body is not valid JSON: {details.get('ctx', {}).get('error', details['msg'])}"
    path = [str(part) for part in details["loc"][1:]]
    if not path and details["type"] in ("model_attributes_type", "dict_type"):
        return None, "the body must be a JSON object, sent with the header Content-Type: application/json"
    param = ".".join(path)
    if details["type"] == "missing" and param:
        return param, f"{param} is required"
    if details["type"] == "extra_forbidden":
        return param, f"unknown field {param!r}{_meant(param, unsent) if len(path) == 1 and unsent else ''}"
    return param or None, f"{param}: {details['msg']}" if param else str(details["msg"])


def _meant(name: str, unsent: Mapping[str, FieldInfo]) -> str:
    """Return a hint at the field that an unknown one is meant for: its misspelling, or else the input that is missing.

    Inputs are the fields that are required or have an example: {"text": ...} is meant for "input".
    """
    inputs = [field for field, info in unsent.items() if (info.is_required() or info.examples) and field != "model"]
    if inputs and not difflib.get_close_matches(name, unsent, n=1, cutoff=MISSPELLED):
        return f" (did you mean {' or '.join(inputs)}?)"
    return nearest(name, unsent)

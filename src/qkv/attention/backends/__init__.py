"""Backends: ways to compute the same attention, in order of preference, and the choice among them."""

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.backends.sdpa import Sdpa
from qkv.attention.spec import Backend, Request
from qkv.errors import InputError, Unsupported

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Sdpa(), REFERENCE)}


def choose(request: Request, name: str = "auto") -> Backend:
    """The backend to run: the first that supports the request, or the named one, which never gives way to another."""
    if name == "auto":
        if request.need_weights:  # the reference has the weights in hand; a fused kernel would compute them twice
            return REFERENCE
        return next(backend for backend in BACKENDS.values() if backend.supports(request) is None)
    if name not in BACKENDS:
        raise InputError(f"unknown backend {name!r} (known: auto, {', '.join(BACKENDS)})")
    reason = BACKENDS[name].supports(request)
    if reason is not None:
        raise Unsupported(name, reason)
    return BACKENDS[name]

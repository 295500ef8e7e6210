"""Backends: ways to compute the same attention, in order of preference, and the choice among them."""

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.backends.sdpa import Sdpa
from qkv.attention.spec import Backend, Request
from qkv.errors import InputError, Unsupported

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Sdpa(), REFERENCE)}


def choose(request: Request, name: str = "auto") -> Backend:
    """The backend to run: the first that supports the request, or the named one, which never gives way to another."""
    if name == "auto":
        # With the weights asked for, the reference comes first: it has them in hand, others would compute them again.
        candidates = (REFERENCE, *BACKENDS.values()) if request.need_weights else BACKENDS.values()
        reasons = {}
        for backend in candidates:
            reasons[backend.name] = backend.supports(request)
            if reasons[backend.name] is None:
                return backend
        raise Unsupported(name, "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    if name not in BACKENDS:
        raise InputError(f"unknown backend {name!r} (known: auto, {', '.join(BACKENDS)})")
    reason = BACKENDS[name].supports(request)
    if reason is not None:
        raise Unsupported(name, reason)
    return BACKENDS[name]

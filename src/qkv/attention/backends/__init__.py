"""Backends: ways to compute the same attention, and the choice among them."""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.attention.backends.flex import Flex
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.backends.sdpa import Sdpa
from qkv.attention.backends.triton import Triton
from qkv.attention.spec import Backend, Request
from qkv.errors import InputError, Unsupported

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Sdpa(), Flex(), Triton(), REFERENCE)}

ON_THE_CPU = (BACKENDS["sdpa"], REFERENCE)  # the others run there too, but only to show that they are right


def choose(request: Request, name: str = "auto") -> Backend:
    """The backend to run: the fastest that supports the request, or the named one, which never gives way to another."""
    if name == "auto":
        return next(backend for backend in preference(request) if backend.supports(request) is None)
    backend = BACKENDS.get(name)
    if backend is None:
        raise InputError(f"unknown backend {name!r} (known: auto, {', '.join(BACKENDS)})")
    reason = backend.supports(request)
    if reason is not None:
        raise Unsupported(name, reason)
    return backend


def preference(request: Request) -> Iterable[Backend]:
    """All backends, the one expected to be fastest first; the reference serves everything."""
    if request.need_weights:  # the reference has them in hand, the others would compute them again
        return (REFERENCE,)
    return BACKENDS.values() if request.query.is_cuda else ON_THE_CPU


@dataclass(frozen=True)
class Explanation:
    """Which backend would run, and what each of the others has to say."""

    backend: str | None  # None: the backend that was asked for cannot
    reasons: dict[str, str | None]  # of each backend that cannot serve the request, why; None for those that can

    def __str__(self) -> str:
        lines = [f"runs on {self.backend}" if self.backend else "runs on no backend"]
        for name, reason in self.reasons.items():
            if name != self.backend:
                lines.append(f"  {name}: {f'cannot: {reason}' if reason else 'could, but was not preferred'}")
        return "\n".join(lines)


def explained(request: Request, name: str = "auto") -> Explanation:
    """What `choose` would do, in words."""
    reasons = {backend.name: backend.supports(request) for backend in BACKENDS.values()}
    try:
        return Explanation(choose(request, name).name, reasons)
    except Unsupported:
        return Explanation(None, reasons)

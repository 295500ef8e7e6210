"""Backends: ways to compute the same attention, and the choice among them."""

from dataclasses import dataclass

import torch

from qkv.attention.backends.flex import Flex
from qkv.attention.backends.measured import crossovers
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.backends.sdpa import Sdpa
from qkv.attention.backends.triton import Triton
from qkv.attention.mask import Causal
from qkv.attention.spec import Backend, Request
from qkv.errors import InputError, Unsupported

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Sdpa(), Flex(), Triton(), REFERENCE)}


def choose(request: Request, name: str = "auto") -> Backend:
    """The backend to run: the fastest that supports the request, or the named one, which never gives way to another."""
    if name == "auto":
        return next(backend for backend in preference(request) if backend.supports(request) is None)
    backend = BACKENDS[checked_name(name)]
    reason = backend.supports(request)
    if reason is not None:
        raise Unsupported(name, reason)
    return backend


def checked_name(name: str) -> str:
    """The name of a backend, or "auto"; another is refused."""
    if name != "auto" and name not in BACKENDS:
        raise InputError(f"unknown backend {name!r} (known: auto, {', '.join(BACKENDS)})")
    return name


def preference(request: Request) -> tuple[Backend, ...]:
    """The backends worth trying, the one that was measured to be the fastest first; the reference serves everything."""
    sdpa, flex, triton = BACKENDS["sdpa"], BACKENDS["flex"], BACKENDS["triton"]
    if request.need_weights:  # the reference has them in hand, the others would compute them again
        return (REFERENCE,)
    if not request.query.is_cuda:  # there flex is not compiled and triton is interpreted: right, but slow
        return (sdpa, REFERENCE)
    return (triton, flex, sdpa, REFERENCE) if _suits_flex(request) else (triton, sdpa, REFERENCE)


def _suits_flex(request: Request) -> bool:
    """Whether a call is large, and has what flex alone need not store: a mask that is more than an order, or a bias."""
    batch, heads, queries, keys = request.extent[:4]
    masked = request.mask is not None and not isinstance(request.mask, Causal)
    biased = request.position is not None and request.position.biases
    return (
        (masked or biased or request.align.as_softmax() is None)
        and batch * heads * queries * keys >= crossovers(request.query.device).flex_cells
        and not torch.compiler.is_compiling()  # the mask by blocks is made beside the graph, not in it
        and not torch.cuda.is_current_stream_capturing()
    )


@dataclass(frozen=True)
class Explanation:
    """Which backend would run, and what there is to say of each of the others."""

    backend: str | None  # None: the backend that was asked for cannot
    reasons: dict[str, str]  # why each of the others would not

    def __str__(self) -> str:
        chosen = f"runs on {self.backend}" if self.backend else "runs on no backend"
        return "\n".join([chosen, *(f"  not on {name}: {reason}" for name, reason in self.reasons.items())])


def explained(request: Request, name: str = "auto") -> Explanation:
    """What `choose` would do, in words."""
    try:
        chosen = choose(request, name).name
    except Unsupported:
        chosen = None
    reasons = {}
    if name != "auto":
        preferred = f"{name} was asked for"
    elif request.need_weights:
        preferred = f"{chosen} has the weights in hand, which it would compute again"
    else:
        preferred = f"{chosen} was measured to be faster for such a call"
    for other in BACKENDS.values():
        if other.name != chosen:
            reasons[other.name] = other.supports(request) or f"it could, but {preferred}"
    return Explanation(chosen, reasons)

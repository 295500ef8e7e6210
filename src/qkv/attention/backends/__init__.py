"""Attention backends and the choice between them."""

from dataclasses import dataclass

import torch

from qkv.attention.backends.flex import Flex
from qkv.attention.backends.gather import Gather
from qkv.attention.backends.measured import FLEX_CELLS
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.backends.sdpa import Sdpa
from qkv.attention.backends.triton import Triton
from qkv.attention.mask import Causal
from qkv.attention.spec import AttentionRequest, Backend
from qkv.errors import InputError, Unsupported
from qkv.runtime.notebook import Drawable

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Sdpa(), Flex(), Triton(), Gather(), REFERENCE)}


def choose(request: AttentionRequest, name: str = "auto") -> Backend:
    """Return the fastest backend that supports the request, or the named one, without any fallback."""
    if name == "auto":
        return next(backend for backend in preference(request) if backend.supports(request) is None)
    backend = BACKENDS[check_backend(name)]
    reason = backend.supports(request)
    if reason is not None:
        raise Unsupported(name, reason)
    return backend


def check_backend(name: str) -> str:
    """Return the name of a backend (or "auto") after checking that it exists."""
    if name != "auto" and name not in BACKENDS:
        raise InputError(f"unknown backend {name!r} (known: auto, {', '.join(BACKENDS)})")
    return name


def preference(request: AttentionRequest) -> tuple[Backend, ...]:
    """Return the candidate backends, fastest first by measurement; the reference supports everything."""
    sdpa, flex, triton = BACKENDS["sdpa"], BACKENDS["flex"], BACKENDS["triton"]
    if request.need_weights:  # the reference computes them anyway, the others would recompute them
        return (REFERENCE,)
    if not request.query.is_cuda:  # on the CPU flex is not compiled and triton is interpreted: correct, but slow
        return (sdpa, BACKENDS["gather"], REFERENCE)
    return (triton, flex, sdpa, REFERENCE) if _suits_flex(request) else (triton, sdpa, REFERENCE)


def _suits_flex(request: AttentionRequest) -> bool:
    """Whether a call is large and has a non-causal mask or a bias, which only flex does not have to materialize."""
    batch, heads, queries, keys = request.shape[:4]
    masked = request.mask is not None and not isinstance(request.mask, Causal)
    biased = request.position is not None and request.position.adds_bias
    return (
        (masked or biased or request.align.as_softmax() is None)
        and batch * heads * queries * keys >= FLEX_CELLS
        and not torch.compiler.is_compiling()  # the block mask is created outside the graph
        and not torch.cuda.is_current_stream_capturing()
    )


@dataclass(frozen=True)
class Explanation(Drawable):
    """The backend that would run, and why each of the others would not."""

    backend: str | None  # None if the requested backend does not support the call
    reasons: dict[str, str]  # by backend

    def __str__(self) -> str:
        chosen = f"runs on {self.backend}" if self.backend else "runs on no backend"
        return "\n".join([chosen, *(f"  not on {name}: {reason}" for name, reason in self.reasons.items())])


def explain_choice(request: AttentionRequest, name: str = "auto") -> Explanation:
    """Explain what `choose` would return."""
    try:
        chosen = choose(request, name).name
    except Unsupported:
        chosen = None
    reasons = {}
    if name != "auto":
        preferred = f"{name} was requested"
    elif request.need_weights:
        preferred = f"{chosen} computes the weights anyway"
    else:
        preferred = f"{chosen} is faster for this call"
    for backend in BACKENDS.values():
        if backend.name != chosen:
            reasons[backend.name] = backend.supports(request) or f"supported, but {preferred}"
    return Explanation(chosen, reasons)

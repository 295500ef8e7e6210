"""PyTorch's FlexAttention: masks by blocks, biases inside the kernel, and nothing of size query x key in memory."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from qkv.attention.align import LocalPredictive, SoftmaxForm
from qkv.attention.backends.reasons import is_empty, needs_dropout, needs_the_weights, not_a_dot_product, not_a_softmax
from qkv.attention.backends.reference import REFERENCE
from qkv.attention.extent import Extent, Places
from qkv.attention.mask import Mask, Padding
from qkv.attention.score import DotProduct, Keys
from qkv.attention.spec import Attended, Backend, Request
from qkv.errors import Unsupported
from qkv.types import Float, Int, Shaped, Tensor

Change = Callable[[Tensor, Places], Tensor]  # of the score at a cell
LSE = AuxRequest(lse=True)
LEAST_FEATURES = 16  # of a kernel's matrix products; more zeros change none of them
SMALL_BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32,
                "num_stages": 2}  # a bias that is looked up takes room on the chip  # fmt: skip
RECOMPILES = 256  # one compilation for each pair of terms and for each size: the default of 8 is soon used up


@final
class Flex(Backend):
    """`torch.nn.attention.flex_attention`, compiled on a GPU; on the CPU it serves inference, uncompiled."""

    name = "flex"

    def supports(self, request: Request) -> str | None:
        if isinstance(request.align, LocalPredictive):
            if not (request.mask is None or isinstance(request.mask, Padding)):
                return "LocalPredictive counts the keys that may be seen, which is known beforehand for Padding only"
        elif (reason := not_a_softmax(request)) is not None:
            return reason
        reason = not_a_dot_product(request) or needs_the_weights(request) or needs_dropout(request) or is_empty(request)
        if reason is not None:
            return reason
        if request.query.device.type == "cpu" and _needs_gradient(request):
            return "it has no backward pass on the CPU"
        if request.query.device.type not in ("cpu", "cuda"):
            return f"it runs on the CPU and on CUDA, not on {request.query.device.type}"
        return None

    def run(self, request: Request) -> Attended:
        if isinstance(request.align, LocalPredictive):
            output = self._local(request, request.align)
        else:
            form = request.align.as_softmax()
            assert form is not None
            output, _ = self._softmax(request, form, None)
        return Attended(output, *REFERENCE.weights(request)) if request.need_weights else Attended(output)

    def _softmax(
        self, request: Request, form: SoftmaxForm, change: Change | None
    ) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query"]]:
        """A softmax of the scores, changed cell by cell, and its log-sum-exp."""
        query, key = request.features()
        assert isinstance(request.score, DotProduct)
        output, lse = _flex(
            _at_least(LEAST_FEATURES, query),
            _at_least(LEAST_FEATURES, key),
            _at_least(LEAST_FEATURES, request.value),
            score_mod=_score_mod(request, form.temperature, change),
            block_mask=_block_mask(request, form.mask),
            scale=request.score.checked_scale(query, key) / form.temperature,
            enable_gqa=request.grouped,
            kernel_options=SMALL_BLOCKS if request.position is not None and request.position.looks_up else None,
        )
        return output[..., : request.value.shape[-1]], lse

    def _local(self, request: Request, align: LocalPredictive) -> Float[Tensor, "batch heads query value_dim"]:
        """softmax(s) G read as softmax(s + log G), times what that was divided by, over what it should have been."""
        lengths: int | Tensor = request.extent.keys
        if isinstance(request.mask, Padding):
            lengths = request.mask.lengths.to(request.extent.device).clamp(0, request.extent.keys).view(-1, 1, 1)
        centre = align.centre(request.turned_query(), lengths).unsqueeze(-1)  # b h q 1

        fixed = centre.detach()  # of what a window leaves out, no gradient speaks

        def near(score: Tensor, at: Places) -> Tensor:
            distance = at.key - at.of_query(fixed, at.key * 0)
            return torch.where(distance.abs() <= align.window, score, -torch.inf)

        def gaussian(score: Tensor, at: Places) -> Tensor:
            distance = at.key - at.of_query(centre, at.key * 0)
            return near(score, at) - 2.0 * (distance / align.window) ** 2

        output, with_gaussian = self._softmax(request, SoftmaxForm(), gaussian)
        _, without = self._softmax(request, SoftmaxForm(), near)
        empty = without == -torch.inf  # its output is zero already, and -inf less -inf is no number
        factor = torch.exp(with_gaussian.masked_fill(empty, 0.0) - without.masked_fill(empty, 0.0))
        return output * factor.unsqueeze(-1).to(output.dtype)


@final
class Cell(Places):
    """One cell of the scores, inside the kernel, where sizes are no longer checked."""

    def __init__(self, extent: Extent, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> None:
        self.batch, self.head, self.query, self.key = batch, head, query, key
        self.place = query + self._here(extent.first_place)
        self.step = query if extent.start is None else query + self._here(extent.start)

    def of_batch(self, values: Shaped[Tensor, "*batch"]) -> Shaped[Tensor, ""]:
        return values if values.ndim == 0 else values[self.batch if values.shape[0] > 1 else self.batch * 0]

    def of_head(self, values: Shaped[Tensor, "heads"]) -> Shaped[Tensor, ""]:
        return values[self.head]

    def of_place(self, values: Shaped[Tensor, "batch length"], place: Int[Tensor, ""]) -> Shaped[Tensor, ""]:
        return values[self.batch, place]

    def of_query(
        self, values: Shaped[Tensor, "batch heads query choices"], choice: Int[Tensor, ""]
    ) -> Shaped[Tensor, ""]:
        return values[self.batch, self.head, self.query, choice]

    def of_cell(self, values: Shaped[Tensor, "#batch #heads #query #key"]) -> Shaped[Tensor, ""]:
        here = zip((self.batch, self.head, self.query, self.key), values.shape, strict=True)
        return values[tuple(index if size > 1 else index * 0 for index, size in here)]

    def _here(self, values: int | Int[Tensor, "*batch"]) -> int | Int[Tensor, ""]:
        return values if isinstance(values, int) else self.of_batch(values)


def _block_mask(request: Request, further: Mask | None) -> BlockMask | None:
    mask = request.mask if further is None else further if request.mask is None else request.mask & further
    if mask is None:
        return None
    if further is not None or isinstance(request.extent.start, Tensor) or torch.compiler.is_compiling():
        return _by_blocks(mask, request.extent)
    return _kept_by_blocks(mask, request.extent)


def _by_blocks(mask: Mask, extent: Extent) -> BlockMask:
    if not torch.compiler.is_compiling():
        mask.materialise(extent._replace(device=torch.device("meta")))  # shapes alone: raises where they do not fit
    here = mask.on(extent.device)
    return create_block_mask(
        lambda batch, head, query, key: here.allows(Cell(extent, batch, head, query, key)),
        *extent[:4],
        device=extent.device,
    )


_kept_by_blocks = lru_cache(maxsize=8)(_by_blocks)  # every layer of a model asks for the same


def _score_mod(request: Request, temperature: float, change: Change | None) -> Callable[..., Tensor] | None:
    extent = request.extent
    bias = None
    if request.position is not None and request.position.biases:
        bias = request.position.bias(request.turned_query(), extent)
    if bias is None and change is None:
        return None

    def changed(score: Tensor, at: Places) -> Tensor:
        score = score if bias is None else score + bias(at) / temperature
        return score if change is None else change(score, at)

    return lambda score, *cell: changed(score, Cell(extent, *cell))


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    # fullgraph: where PyTorch gives up compiling it says so, and does not run at a hundredth of the speed.
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, **terms: Any
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query"]]:
    if torch.compiler.is_compiling():
        output, aux = flex_attention(query, key, value, return_aux=LSE, **terms)
    elif query.device.type == "cuda":
        with torch._dynamo.config.patch(recompile_limit=RECOMPILES):
            output, aux = _compiled()(query, key, value, return_aux=LSE, **terms)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
            if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):  # asked of a kept plan
                raise Unsupported("flex", "it has no backward pass on the CPU")
            # It refuses tensors that could have a gradient, even where none is asked for.
            query, key, value = query.detach(), key.detach(), value.detach()
            output, aux = flex_attention(query, key, value, return_aux=LSE, **terms)
    return output, aux.lse


def _at_least(features: int, x: Float[Tensor, "batch some_heads length dim"]) -> Float[Tensor, "..."]:
    return F.pad(x, (0, features - x.shape[-1])) if x.shape[-1] < features else x


def _needs_gradient(request: Request) -> bool:
    key = request.key.tensor if isinstance(request.key, Keys) else request.key
    terms = (request.score, request.align, getattr(request.position, "term", request.position))
    weights = (weight for term in terms if isinstance(term, nn.Module) for weight in term.parameters())
    return torch.is_grad_enabled() and any(x.requires_grad for x in (request.query, key, request.value, *weights))

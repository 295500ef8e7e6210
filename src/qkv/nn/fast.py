"""Faster versions of plain operations, each next to the plain version that it must equal.

They save autograd bookkeeping, passes over memory and random numbers, mostly on the CPU. `QKV_FAST=0` in the
environment, or `with qkv.nn.fast.disabled():`, turns all of them off, and the attention kernels for the CPU too.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.attention.precision import at_least_float32
from qkv.nn.kernels import gelu_cpu
from qkv.runtime.fast_paths import disabled as disabled  # also for `fast.disabled()`
from qkv.runtime.fast_paths import enabled as enabled
from qkv.types import Float, Int, Tensor

DROPOUT_LEVELS = 2**16  # sixteen random bits per element: p is exact to 1 in 65,536
CHUNK = 2**20  # logits per chunk of the cross-entropy on the CPU, so that intermediate results stay in cache
MIN_GELU = 2**14  # elements for which the kernel is faster
LINEAR_CHUNK = 2**29  # logits per chunk of the linear cross-entropy on a GPU

_HAS_TRITON = importlib.util.find_spec("triton") is not None


# Dropout: zero each element with probability p and scale the rest by 1 / (1 - p) (Srivastava et al. 2014).


class Dropout(nn.Dropout):
    """nn.Dropout with cheaper random numbers on the CPU."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return dropout(x, self.p) if self.training else x


def dropout(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """Dropout with 16 random bits per element; PyTorch draws a double-precision number for each."""
    if p == 0:
        return x
    if not enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    dropped = min(round(p * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    scale = DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped)
    return (x * scale).masked_fill_(bits < dropped - DROPOUT_LEVELS // 2, 0.0)


# GELU: x Phi(x) (Hendrycks and Gimpel 2016), or its approximation with a tanh.


def gelu(x: Float[Tensor, "*shape"], approximate: str = "none") -> Float[Tensor, "*shape"]:
    """`F.gelu`; if it needs a gradient on the CPU, the derivative is computed with the value, both in float32."""
    if not enabled() or x.device.type != "cpu" or not x.requires_grad or torch.compiler.is_compiling():
        return F.gelu(x, approximate=approximate)
    supported = x.dtype in (torch.float32, torch.bfloat16) and x.is_contiguous()
    if supported and x.numel() >= MIN_GELU and gelu_cpu.kernels() is not None:  # compiles them on first use
        return _Gelu.apply(x, approximate)  # type: ignore[no-untyped-call]
    return F.gelu(at_least_float32(x), approximate=approximate).to(x.dtype)  # in bfloat16 it takes twice as long


class _Gelu(torch.autograd.Function):
    """GELU that saves its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, approximate: str) -> Tensor:
        y, derivative = gelu_cpu.gelu_and_derivative(x, approximate)
        ctx.save_for_backward(derivative)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (derivative,) = ctx.saved_tensors
        return grad * derivative, None


def linear_gelu(
    linear: nn.Module, x: Float[Tensor, "*batch inputs"], approximate: str = "none"
) -> Float[Tensor, "*batch outputs"]:
    """`gelu(linear(x))`; on a GPU, the backward of GELU also computes the gradient of the bias."""
    if not enabled() or not x.is_cuda or not torch.is_grad_enabled() or not isinstance(linear, nn.Linear):
        return gelu(linear(x), approximate)
    if linear.bias is None or linear.weight.dtype == torch.float64 or not has_triton():
        return gelu(linear(x), approximate)
    from qkv.nn.kernels.gelu_kernels import gelu_of_linear

    return gelu_of_linear(F.linear(x, linear.weight, linear.bias.detach()), linear.bias, tanh=approximate == "tanh")


# GRU: r, z = sigmoid(W x + U h),   n = tanh(W x + r * U h),   h' = (1 - z) n + z h.


def plain_gru_cell(
    input_gates: Float[Tensor, "batch gates"],
    hidden_gates: Float[Tensor, "batch gates"],
    h: Float[Tensor, "batch hidden"],
) -> Float[Tensor, "batch hidden"]:
    """One GRU step from W x and U h of the three gates."""
    x_reset, x_update, x_new = input_gates.chunk(3, dim=-1)
    h_reset, h_update, h_new = hidden_gates.chunk(3, dim=-1)
    reset, update = (x_reset + h_reset).sigmoid(), (x_update + h_update).sigmoid()
    new = (x_new + reset * h_new).tanh()
    return (1 - update) * new + update * h


def gru_cell(
    input_gates: Float[Tensor, "batch gates"],
    hidden_gates: Float[Tensor, "batch gates"],
    h: Float[Tensor, "batch hidden"],
) -> Float[Tensor, "batch hidden"]:
    """`plain_gru_cell`: one kernel on a GPU, and a hand-written backward on the CPU."""
    if enabled() and h.is_cuda:
        return torch.ops.aten._thnn_fused_gru_cell(input_gates, hidden_gates, h)[0]
    if not enabled() or torch.compiler.is_compiling():
        return plain_gru_cell(input_gates, hidden_gates, h)
    if not torch.is_grad_enabled():
        return _gru_parts(input_gates, hidden_gates, h)[-1]
    return _GRUCell.apply(input_gates, hidden_gates, h)  # type: ignore[no-untyped-call]


def _gru_parts(input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return r and z concatenated, n, and h'."""
    hidden = h.shape[-1]
    gates = (input_gates[:, : 2 * hidden] + hidden_gates[:, : 2 * hidden]).sigmoid_()
    reset, update = gates.split(hidden, dim=-1)
    new = torch.addcmul(input_gates[:, 2 * hidden :], reset, hidden_gates[:, 2 * hidden :]).tanh_()
    return gates, new, torch.lerp(new, h, update)


class _GRUCell(torch.autograd.Function):
    """One GRU step whose backward is written by hand: autograd's bookkeeping per operation would dominate."""

    @staticmethod
    def forward(ctx: Any, input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> Tensor:
        gates, new, h_next = _gru_parts(input_gates, hidden_gates, h)
        ctx.save_for_backward(gates, new, h, hidden_gates)
        return h_next

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, new, h, hidden_gates = ctx.saved_tensors
        hidden = h.shape[-1]
        reset, update = gates.split(hidden, dim=-1)
        d_input, d_hidden = torch.empty_like(hidden_gates), torch.empty_like(hidden_gates)
        d_reset, d_update, d_new = d_input.split(hidden, dim=-1)
        d_h = grad * update
        torch.mul(grad - d_h, 1 - new * new, out=d_new)  # gradient before the tanh; likewise for the sigmoids below
        torch.mul(grad, h - new, out=d_update)
        torch.mul(d_new, hidden_gates[:, 2 * hidden :], out=d_reset)
        d_input[:, : 2 * hidden] *= gates * (1 - gates)
        d_hidden[:, : 2 * hidden] = d_input[:, : 2 * hidden]
        torch.mul(d_new, reset, out=d_hidden[:, 2 * hidden :])
        return d_input, d_hidden, d_h


def gru_layer(
    layer: nn.GRU, x: Float[Tensor, "batch length inputs"], h: Float[Tensor, "batch hidden"]
) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch hidden"]]:
    """`layer(x, h)`: on the CPU PyTorch loops over the steps too, and accumulates the gradient of U at each of them."""
    if not enabled() or x.device.type != "cpu" or not torch.is_grad_enabled():
        outputs, last = layer(x, h[None].contiguous())
        return outputs, last[0]
    input_weight, hidden_weight, input_bias, hidden_bias = layer.parameters()
    input_gates = F.linear(x.transpose(0, 1), input_weight, input_bias)
    hidden_linear = StepLinear(hidden_bias.expand(*input_gates.shape[:2], -1), hidden_weight)
    states = []
    for gates in input_gates.unbind(0):
        h = gru_cell(gates, hidden_linear(h), h)
        states.append(h)
    return torch.stack(states, dim=1), h


# LSTM: i, f, o = sigmoid(W x + U h),   g = tanh(W x + U h),   c' = f c + i g,   h' = o tanh(c').


def plain_lstm_cell(
    input_gates: Float[Tensor, "batch gates"],
    hidden_gates: Float[Tensor, "batch gates"],
    c: Float[Tensor, "batch hidden"],
) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]:
    """One LSTM step from W x and U h of the four gates; returns h' in the dtype of the gates, and c'."""
    i, f, g, o = (input_gates + hidden_gates).chunk(4, dim=-1)
    c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
    return (o.sigmoid() * c.tanh()).to(input_gates.dtype), c


def lstm_cell(
    input_gates: Float[Tensor, "batch gates"],
    hidden_gates: Float[Tensor, "batch gates"],
    c: Float[Tensor, "batch hidden"],
) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]:
    """`plain_lstm_cell`: one kernel on a GPU."""
    if not enabled() or not c.is_cuda:
        return plain_lstm_cell(input_gates, hidden_gates, c)
    h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(input_gates.to(c.dtype), hidden_gates.to(c.dtype), c)
    return h.to(input_gates.dtype), c


# A linear layer applied step by step.


class StepLinear:
    """g_t = base_t + W x_t, one step t at a time.

    Accumulating dW = sum_t dg_t x_t^T per step would cost a product and a sum of the size of W each time. Instead, W is
    detached in the steps and dW is computed in one product, once the gradients dg_t of all base_t are known.
    """

    def __init__(self, base: Float[Tensor, "length batch out"], weight: Float[Tensor, "out inputs"]) -> None:
        self.inputs: list[Tensor] = []  # x_t
        self.defers_grad = enabled() and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if self.defers_grad:
            base, weight = _DeferredWeightGrad.apply(base, weight, self.inputs), weight.detach()  # type: ignore[no-untyped-call]
        self.base, self.weight = iter(base.unbind(0)), weight.t()

    @classmethod
    def from_linear(cls, linear: nn.Linear, length: int, batch: int) -> "StepLinear":
        """Apply a linear layer over `length` steps."""
        return cls(autocast_once(linear.bias).expand(length, batch, -1), autocast_once(linear.weight))

    def __call__(self, x: Float[Tensor, "batch inputs"] | None) -> Float[Tensor, "batch out"]:
        """Return the next g_t; None is an input without features."""
        base = next(self.base)
        if x is None:
            return base
        x = x.to(base.dtype)
        if self.defers_grad:
            self.inputs.append(x.detach())  # x itself would keep the graph, which holds this list, alive
        return torch.addmm(base, x, self.weight)


class _DeferredWeightGrad(torch.autograd.Function):
    """Identity on `base` whose backward also computes the gradient of the weight that the steps multiply by."""

    @staticmethod
    def forward(base: Tensor, weight: Tensor, step_inputs: list[Tensor]) -> Tensor:
        return base.view_as(base)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, list[Tensor]], output: Tensor) -> None:
        ctx.step_inputs = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if not ctx.step_inputs or not ctx.needs_input_grad[1]:
            return grad, None, None
        return grad, grad.flatten(0, 1).t() @ torch.cat(ctx.step_inputs), None


def autocast_once(weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast a weight to the autocast dtype once, instead of at every step."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight


# Convolution over positions followed by their maximum.


def plain_max_convolution(
    x: Float[Tensor, "batch length inputs"], convolution: nn.Conv1d
) -> Float[Tensor, "batch outputs"]:
    """max_t (C * x)_t."""
    return convolution(x.transpose(1, 2)).amax(dim=-1)


def max_convolution(x: Float[Tensor, "batch length inputs"], convolution: nn.Conv1d) -> Float[Tensor, "batch outputs"]:
    """`plain_max_convolution` as a matrix product; the gradient of `max` is cheaper than that of `amax`."""
    if not enabled():
        return plain_max_convolution(x, convolution)
    windows = x.unfold(1, convolution.kernel_size[0], 1).flatten(2)  # batch positions (inputs width)
    highest = F.linear(windows, convolution.weight.flatten(1)).max(dim=1).values
    return highest if convolution.bias is None else highest + convolution.bias


def max_convolutions(
    x: Float[Tensor, "batch length inputs"], convolutions: Sequence[nn.Conv1d]
) -> Float[Tensor, "batch outputs"]:
    """`plain_max_convolution` of several convolutions, concatenated; in half precision on a GPU without the windows."""
    if enabled() and x.is_cuda and has_triton() and not torch.compiler.is_compiling():
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        if dtype in (torch.bfloat16, torch.float16) and _fits_max_convolutions(x, convolutions):
            return _fused_max_convolutions(x, convolutions, dtype)
    return torch.cat([max_convolution(x, convolution) for convolution in convolutions], dim=-1)


def _fits_max_convolutions(x: Tensor, convolutions: Sequence[nn.Conv1d]) -> bool:
    from qkv.nn.kernels.convolution_kernels import MAX_POSITIONS, MAX_WINDOW

    widths = [convolution.kernel_size[0] for convolution in convolutions]
    fits = len(x) > 0 and x.shape[1] <= MAX_POSITIONS and max(widths) * x.shape[2] <= MAX_WINDOW
    return fits and has_large_shared_memory(x.device)


def _fused_max_convolutions(x: Tensor, convolutions: Sequence[nn.Conv1d], dtype: torch.dtype) -> Tensor:
    weights, biases = zip(*((convolution.weight, convolution.bias) for convolution in convolutions), strict=True)
    return _MaxConvolutions.apply(x, dtype, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]


class _MaxConvolutions(torch.autograd.Function):
    """Convolutions over positions followed by their maximum, which keep only the position of the maximum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, count: int, *parameters: Tensor | None) -> Tensor:
        from qkv.nn.kernels.convolution_kernels import max_convolution

        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (x, *parameters)]
        x = x.to(dtype).contiguous()
        weights = [weight.to(dtype) for weight in parameters[:count] if weight is not None]
        matrices = [weight.permute(2, 1, 0).flatten(0, 1).contiguous() for weight in weights]  # (width inputs) outputs
        features = [matrix.shape[1] for matrix in matrices]
        out = x.new_empty(len(x), sum(features))
        argmax = torch.empty_like(out, dtype=torch.uint8)
        parts = zip(matrices, parameters[count:], out.split(features, 1), argmax.split(features, 1), strict=True)
        for matrix, bias, highest, position in parts:
            max_convolution(x, matrix, bias, highest, position)
        ctx.save_for_backward(x, argmax, *matrices)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from qkv.nn.kernels.convolution_kernels import add_input_gradient, weight_gradient

        x, argmax, *matrices = ctx.saved_tensors
        features = [matrix.shape[1] for matrix in matrices]
        grad = grad.contiguous()
        grad_x = torch.zeros_like(x, dtype=torch.float32)
        grad_weights = []
        for matrix, part, position in zip(matrices, grad.split(features, 1), argmax.split(features, 1), strict=True):
            if ctx.needs_input_grad[0]:
                add_input_gradient(part, position, matrix, grad_x)
            grad_weight = weight_gradient(part, position, x, len(matrix))
            grad_weights.append(grad_weight.unflatten(1, (-1, x.shape[2])).transpose(1, 2))
        grad_biases = grad.sum(dim=0, dtype=torch.float32).split(features)
        gradients = zip((grad_x, *grad_weights, *grad_biases), ctx.dtypes, strict=True)
        first, *rest = (None if dtype is None else gradient.to(dtype) for gradient, dtype in gradients)
        return first, None, None, *rest


# Cross-entropy.


def plain_cross_entropy(
    logits: Float[Tensor, "tokens vocabulary"], targets: Int[Tensor, "tokens"], ignore: int, label_smoothing: float
) -> Float[Tensor, ""]:
    """Mean of -(1 - e) log p(target) - e / V sum_v log p(v) over all targets except `ignore`; 0 without targets."""
    total = F.cross_entropy(
        at_least_float32(logits), targets, ignore_index=ignore, label_smoothing=label_smoothing, reduction="sum"
    )
    return total / (targets != ignore).sum().clamp(min=1)


def cross_entropy(
    logits: Float[Tensor, "tokens vocabulary"],
    targets: Int[Tensor, "tokens"],
    ignore: int,
    label_smoothing: float,
    *,
    consume: bool = False,
) -> Float[Tensor, ""]:
    """`plain_cross_entropy` with the gradient (p - (1 - e) [v = target] - e / V) / n computed in the forward pass.

    With `consume` the gradient overwrites the logits, usually the largest tensor of a step.
    """
    if not enabled():
        return plain_cross_entropy(logits, targets, ignore, label_smoothing)
    return _CrossEntropy.apply(logits, targets, ignore, label_smoothing, consume)  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy that computes its gradient in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, ignore: int, label_smoothing: float, consume: bool
    ) -> Tensor:
        targets, weights = _target_weights(targets, ignore, torch.promote_types(logits.dtype, torch.float32))
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if consume and logits.is_contiguous() else torch.empty_like(logits)
            ctx.save_for_backward(gradient)
        return _cross_entropy_rows(logits.contiguous(), gradient, targets, weights, label_smoothing)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return _scaled(gradient, grad_output), None, None, None, None


def linear_cross_entropy(
    hidden: Float[Tensor, "tokens dim"],
    weight: Float[Tensor, "vocabulary dim"],
    bias: Float[Tensor, "vocabulary"] | None,
    targets: Int[Tensor, "tokens"],
    ignore: int,
    label_smoothing: float,
) -> Float[Tensor, ""]:
    """`cross_entropy` of the logits W h + b; on a GPU, they are computed and consumed for some of the tokens at a time.

    The largest tensor of a step is then never stored.
    """
    if not enabled() or not hidden.is_cuda or torch.compiler.is_compiling():
        return cross_entropy(F.linear(hidden, weight, bias), targets, ignore, label_smoothing, consume=True)
    return _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        autocast_once(hidden), weight, bias, targets, ignore, label_smoothing
    )


class _LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of a linear layer that computes all gradients in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        ignore: int,
        label_smoothing: float,
    ) -> Tensor:
        vocabulary, dtype = len(weight), torch.promote_types(hidden.dtype, torch.float32)
        targets, weights = _target_weights(targets, ignore, dtype)
        # Rows of zeros up to a multiple of 64: the matrix products of other sizes are slower.
        padding = (0, 0, 0, -vocabulary % 64)
        w = F.pad(weight.detach().to(hidden.dtype), padding)
        b = None if bias is None else F.pad(bias.detach().to(hidden.dtype), padding[2:])
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(w, dtype=dtype) if need_weight else None
        grad_bias = torch.zeros(len(w), dtype=dtype, device=w.device) if need_bias else None
        loss = weights.new_zeros(())
        rows = 2 ** (LINEAR_CHUNK // len(w)).bit_length() // 2  # a power of two, which most batches are multiples of
        for part in _parts(len(hidden), rows):
            logits = F.linear(hidden[part], w, b)
            gradient = logits if need_hidden or need_weight or need_bias else None
            loss += _cross_entropy_rows(logits, gradient, targets[part], weights[part], label_smoothing, vocabulary)
            if grad_hidden is not None:
                torch.mm(logits, w, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, logits.t(), hidden[part])
            if grad_bias is not None:
                grad_bias += logits.sum(dim=0, dtype=dtype)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.vocabulary, ctx.dtype = vocabulary, weight.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        weight, bias = (None if x is None else x[: ctx.vocabulary].to(ctx.dtype) for x in (weight, bias))
        gradients = (None if x is None else _scaled(x, grad_output) for x in (hidden, weight, bias))
        return (*gradients, None, None, None)


def _target_weights(targets: Tensor, ignore: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return valid targets, and the weight of each token in the mean: 0 where the target is `ignore`."""
    counted = (targets != ignore).to(dtype)
    return targets.masked_fill(targets == ignore, 0), counted / counted.sum().clamp(min=1.0)


def _parts(length: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` rows."""
    for begin in range(0, length, max(1, size)):
        yield slice(begin, begin + max(1, size))


def _cross_entropy_rows(
    logits: Tensor,
    gradient: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    label_smoothing: float,
    vocabulary: int | None = None,
) -> Tensor:
    """Return the weighted sum of the cross-entropies, and write its gradient, possibly over the logits."""
    vocabulary = logits.shape[1] if vocabulary is None else vocabulary
    if logits.is_cuda and logits.dtype != torch.float64 and has_triton():
        from qkv.nn.kernels.loss_kernels import cross_entropy_rows

        return cross_entropy_rows(logits, gradient, targets, weights, label_smoothing, vocabulary)
    loss = weights.new_zeros(())
    rows = CHUNK // vocabulary if logits.device.type == "cpu" else len(targets)
    for part in _parts(len(targets), rows):
        target, weight = targets[part, None], weights[part, None]
        log_p = at_least_float32(logits[part, :vocabulary]).log_softmax(dim=-1)
        smooth = label_smoothing * log_p.mean(dim=-1, keepdim=True) if label_smoothing else 0.0
        loss = loss - ((1 - label_smoothing) * log_p.gather(1, target) + smooth).mul(weight).sum()
        if gradient is not None:
            grad = log_p.exp_().sub_(label_smoothing / vocabulary) if label_smoothing else log_p.exp_()
            grad.scatter_add_(1, target, grad.new_full((), label_smoothing - 1).expand(target.shape))
            torch.mul(grad, weight, out=gradient[part, :vocabulary])
            gradient[part, vocabulary:] = 0.0
    return loss


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return _HAS_TRITON


@cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Return whether a GPU has at least 160 KB of shared memory per block, as data-center GPUs since the A100."""
    properties = torch.cuda.get_device_properties(device)
    return bool(getattr(properties, "shared_memory_per_block_optin", 0) >= 160_000)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b; a product of bfloat16 is added in float32 without being rounded."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


def _scaled(gradient: Tensor, grad_output: Tensor) -> Tensor:
    if not grad_output.is_cuda and grad_output.item() == 1.0:  # backward() on the loss itself
        return gradient
    return gradient * grad_output.to(gradient.dtype)

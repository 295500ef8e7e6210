"""Speed of the operator compared with its building blocks. Only verified results are timed.

    python -m benchmarks.attention                    every section that this machine can run
    python -m benchmarks.attention additive kernels   some of them
    python -m benchmarks.attention --crossovers       the figures of qkv/attention/backends/measured.py, for this GPU

overhead   overhead of `attend` over the kernel it calls, for tiny tensors (CPU)
kernels    `attend` with backend="auto" compared with direct calls of flash, cuDNN and FlexAttention (GPU)
additive   fused additive attention compared with torch.compile of its formula: time and memory (GPU)
hard       hard attention, which gathers the chosen values, compared with soft attention, by length (CPU)
watch      cost of watching one head of a 12-layer model at 1,024 tokens (CPU, GPU)
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import qkv
from benchmarks.timing import GPU, MOST_ERROR, Contender, error, milliseconds, refuse, right, tell
from qkv.attention import (
    Additive,
    ALiBi,
    Attend,
    Causal,
    Documents,
    Hard,
    Mask,
    Padding,
    Position,
    Relative,
    ScaledDot,
    Score,
    Window,
    attend,
)  # fmt: skip
from qkv.attention.watch import AttentionRecording
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multi_head import MultiHeadAttention

HALF = torch.bfloat16
Call = Callable[[], Tensor]
Shape = tuple[int, int, int, int]  # batch, heads, length, features


def with_gradients(call: Call, leaves: list[Tensor], grad_output: Tensor) -> Contender:
    return lambda: torch.autograd.grad(call(), leaves, grad_output)


# ------------------------------------------------------------------------------------------------------- overhead


@torch.inference_mode()
def overhead() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 4, 8)
    lengths = torch.tensor([3])
    allowed = (torch.arange(4) < lengths[:, None])[:, None, None]
    bare = F.scaled_dot_product_attention
    pairs: dict[str, tuple[Call, Call]] = {
        "no mask": (lambda: bare(query, key, key), lambda: attend(query, key, key).output),
        "causal": (lambda: bare(query, key, key), lambda: attend(query, key, key, mask=Causal()).output),
        "padding": (
            lambda: bare(query, key, key, allowed),
            lambda: attend(query, key, key, mask=Padding(lengths)).output,
        ),
    }
    for name, (kernel, operator) in pairs.items():
        if not right(operator(), kernel().double(), 1e-6):
            refuse("overhead", name, error(operator(), kernel().double()))
            continue
        least = [_min_microseconds(call) for call in (kernel, operator)]
        tell("overhead", name, kernel_us=round(least[0], 1), added_us=round(least[1] - least[0], 1))
    torch.set_num_threads(threads)


def _min_microseconds(call: Call, calls: int = 3000) -> float:
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return min(times)


# -------------------------------------------------------------------------------------------------------- kernels


def kernels() -> None:
    for shape in ((4, 16, 4096, 128), (16, 12, 1024, 64), (2, 16, 16384, 128)):
        for causal in (True, False):
            _kernels_at(shape, causal)


def _kernels_at(shape: Shape, causal: bool) -> None:
    batch, heads, length, dim = shape
    leaves = [torch.randn(shape, device="cuda", dtype=HALF, requires_grad=True) for _ in range(3)]
    grad_output, mask = torch.randn_like(leaves[0]), Causal() if causal else None
    calls = _direct_calls(*leaves, causal)
    calls["auto"] = lambda: attend(*leaves, mask=mask).output
    truth = _one_head_float64(leaves, grad_output, causal)
    for name, call in list(calls.items()):
        actual = call()
        grads = torch.autograd.grad(actual, leaves, grad_output)
        worst = max(error(a[0, 0], b) for a, b in zip([actual, *grads], truth, strict=True))
        if not worst <= MOST_ERROR:
            refuse("kernels", f"{name} {list(shape)}", worst)
            del calls[name]
    del truth
    many = max(3, 2**14 // length)  # enough calls to take a millisecond or two
    forward = milliseconds(calls, rounds=20, calls=many)
    both = milliseconds(
        {n: with_gradients(call, leaves, grad_output) for n, call in calls.items()}, rounds=12, calls=many
    )
    operations = 4 * batch * heads * length**2 * dim * (0.5 if causal else 1.0)
    for timed, direction, factor in ((forward, "forward", 1.0), (both, "forward and backward", 3.5)):
        best = min(taken for name, taken in timed.items() if name != "auto")
        tell(
            "kernels",
            f"{list(shape)} {'causal' if causal else 'full'} {direction}",
            tflops={name: round(factor * operations / taken / 1e9) for name, taken in timed.items()},
            auto_over_best=round(timed["auto"] / best, 3),
        )


def _direct_calls(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> dict[str, Call]:
    def by(kernel: SDPBackend) -> Call:
        def call() -> Tensor:
            with sdpa_kernel(kernel):
                return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

        return call

    length = query.shape[2]
    blocks = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device="cuda") if causal else None
    compiled = torch.compile(flex_attention, dynamic=False)
    return {
        "flash": by(SDPBackend.FLASH_ATTENTION),
        "cudnn": by(SDPBackend.CUDNN_ATTENTION),
        "flex": lambda: compiled(query, key, value, block_mask=blocks),
    }


def _one_head_float64(leaves: list[Tensor], grad_output: Tensor, causal: bool) -> list[Tensor]:
    """Output and gradients of the first head of the first item, in float64."""
    query, key, value = (leaf[0, 0].detach().double().requires_grad_() for leaf in leaves)
    scores = query @ key.t() / query.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    output = scores.softmax(dim=-1) @ value
    return [output.detach(), *torch.autograd.grad(output, (query, key, value), grad_output[0, 0].double())]


# ------------------------------------------------------------------------------------------------------- additive


def additive() -> None:
    for batch, queries, keys in ((8, 1024, 1024), (64, 64, 64), (64, 1, 64)):
        _additive_at(batch, queries, keys, dim=512)


def _additive_at(batch: int, queries: int, keys: int, dim: int) -> None:
    what = f"[batch {batch}, q {queries}, k {keys}, d {dim}]"
    lengths = (queries, keys, keys)
    leaves = [torch.randn(batch, 1, length, dim, device="cuda", dtype=HALF, requires_grad=True) for length in lengths]
    leaves.append(torch.randn(dim, device="cuda", dtype=HALF, requires_grad=True))  # v
    grad_output = torch.randn_like(leaves[0])
    formula = torch.compile(_additive_formula, dynamic=False)
    calls: dict[str, Call] = {
        "ours": lambda: _fused_additive(*leaves),
        "compile": lambda: formula(*(leaf[:, 0] for leaf in leaves[:3]), leaves[3])[:, None],
    }
    truth = _additive_float64(leaves, grad_output)
    actual = calls["ours"]()
    everything = [actual, *torch.autograd.grad(actual, leaves, grad_output)]
    worst = max(error(a, b) for a, b in zip(everything, truth, strict=True))
    del actual, everything, truth
    if not worst <= MOST_ERROR:
        refuse("additive", what, worst)
        return
    forward = milliseconds(calls)
    both = milliseconds({name: with_gradients(call, leaves, grad_output) for name, call in calls.items()}, rounds=9)
    tell(
        "additive",
        what,
        forward_ms={name: round(taken, 3) for name, taken in forward.items()},
        both_ms={name: round(taken, 3) for name, taken in both.items()},
        forward_ratio=round(forward["compile"] / forward["ours"], 2),
        both_ratio=round(both["compile"] / both["ours"], 2),
        tanh_per_second=f"{batch * queries * keys * dim / forward['ours'] * 1e3:.2e}",
        worst_error=f"{worst:.1e}",
        **_memory(calls["ours"], leaves, grad_output),
    )


def _fused_additive(query: Tensor, key: Tensor, value: Tensor, vector: Tensor) -> Tensor:
    """The kernel of the backend `triton`, without the projections."""
    from qkv.attention.backends.additive import additive_attention

    return additive_attention(query.transpose(-1, -2), key.transpose(-1, -2), vector[None], value)[0]


def _additive_formula(query: Tensor, key: Tensor, value: Tensor, vector: Tensor) -> Tensor:
    scores = torch.tanh(query[:, :, None] + key[:, None]) @ vector
    return torch.softmax(scores.float(), dim=-1).to(value.dtype) @ value


def _additive_float64(leaves: list[Tensor], grad_output: Tensor) -> list[Tensor]:
    """Output and gradients in float64, computed in chunks of queries to limit memory."""
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    query, key, value, vector = exact
    totals, outputs = [torch.zeros_like(leaf) for leaf in exact], []
    for row in range(query.shape[0]):
        for first in range(0, query.shape[2], 256):
            hidden = torch.tanh(query[row, 0, first : first + 256, None] + key[row, 0])  # q k d
            output = torch.softmax(hidden @ vector, dim=-1) @ value[row, 0]
            grads = torch.autograd.grad(output, exact, grad_output[row, 0, first : first + 256].double())
            totals = [total.add_(grad) for total, grad in zip(totals, grads, strict=True)]
            outputs.append(output.detach())
    return [torch.cat(outputs).view(*grad_output.shape), *totals]


def _memory(call: Call, leaves: list[Tensor], grad_output: Tensor) -> dict[str, float]:
    """Peak memory beyond inputs and outputs, for the forward pass and with the backward pass."""
    inputs, output = sum(leaf.nbytes for leaf in leaves), grad_output.nbytes
    with torch.no_grad():
        forward = _peak(call)
    both = _peak(with_gradients(call, leaves, grad_output))
    return {
        "forward_memory_ratio": round((inputs + forward) / (inputs + output), 2),
        "both_memory_ratio": round((inputs + output + both) / (2 * inputs + 2 * output), 2),
    }


def _peak(call: Contender) -> int:
    """Peak bytes allocated by a call."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


# ---------------------------------------------------------------------------------------------------------- watch


class Block(nn.Module):
    """A layer of the size of GPT-2 small."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(768, 12)
        self.feedforward = FeedForward(768, 3072, 0.0)
        self.norms = nn.ModuleList([nn.LayerNorm(768), nn.LayerNorm(768)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), Causal())[0]
        return x + self.feedforward(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(12)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def watch() -> None:
    device, dtype = ("cuda", HALF) if GPU else ("cpu", torch.float32)
    model = Decoder().to(device, dtype).eval()
    for batch in (1, 8, 32) if GPU else (1,):
        _watch_at(model, torch.randn(batch, 1024, 768, device=device, dtype=dtype))


@torch.inference_mode()
def _watch_at(model: nn.Module, x: Tensor) -> None:
    what = f"one head of 12 layers, 1,024 tokens, batch {x.shape[0]}, {str(x.dtype)[6:]} on {x.device.type}"
    actual, truth = _recorded_weights(model, x), _weights_float64(model, x)
    if not right(actual, truth, 1e-4 if x.dtype == torch.float32 else 5e-2):
        refuse("watch", what, error(actual, truth))
        return
    models = {
        "plain": model,
        "plain, again": _shared_copy(model),  # measures the noise
        "watched": _shared_copy(model),
        "watched and read": _shared_copy(model),
        "watched in every layer": _shared_copy(model),
        "reference": _shared_copy(model),
    }
    for layer in _attention(models["reference"]):
        layer.backend = "reference"
    with (
        qkv.watch(models["watched"], layers=[5], heads=[3]) as one_layer,
        qkv.watch(models["watched and read"], layers=[5], heads=[3]) as read_layer,
        qkv.watch(models["watched in every layer"], heads=[3]) as every_layer,
    ):
        recordings = {"watched": one_layer, "watched and read": read_layer, "watched in every layer": every_layer}
        calls: dict[str, Contender] = {
            name: partial(_forward, watched, x, recordings.get(name), read=name == "watched and read")
            for name, watched in models.items()
        }
        if GPU:
            calls |= {f"{name}, in a graph": _captured(watched, x) for name, watched in models.items()}
        taken = milliseconds(calls, rounds=21 if GPU else 11, calls=3 if GPU else 1)
    tell(
        "watch",
        what,
        ms={name: round(ms, 2) for name, ms in taken.items()},
        costs={
            name: f"{ms / taken['plain, in a graph' if 'graph' in name else 'plain'] - 1:+.1%}"
            for name, ms in taken.items()
            if name not in ("plain", "plain, in a graph")
        },
        off_by=f"{error(actual, truth):.1e}",
    )


def _forward(model: nn.Module, x: Tensor, recording: AttentionRecording | None, *, read: bool) -> None:
    """A forward pass that replaces the recorded weights, which are rebuilt lazily."""
    if recording is not None:
        recording.reset()
    model(x)
    for record in recording.values() if recording is not None and read else ():
        _ = record.weights


def _recorded_weights(model: nn.Module, x: Tensor) -> Tensor:
    with qkv.watch(model, heads=[3]) as recording:
        model(x)
    return torch.cat([record.weights for record in recording.values()])


def _weights_float64(model: nn.Module, x: Tensor) -> Tensor:
    """Attention weights of the same model in float64 and plain PyTorch."""
    exact = _shared_copy(model).double()
    for layer in _attention(exact):
        layer.backend = "reference"
    return _recorded_weights(exact, x.double())


def _shared_copy(model: nn.Module) -> nn.Module:
    """Another model that shares the weights."""
    twin = Decoder().to(next(model.parameters()).device).eval()
    twin.load_state_dict(model.state_dict(), assign=True)
    return twin


def _captured(model: nn.Module, x: Tensor) -> Contender:
    """The model in a CUDA graph, to exclude launch overhead."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def _attention(model: nn.Module) -> Iterator[Attend]:
    return (module for module in model.modules() if isinstance(module, Attend))


# ----------------------------------------------------------------------------------------------------------- hard


@torch.inference_mode()
def hard() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for length in (64, 128, 256, 512, 1024, 2048, 4096):
        _hard_at("one query", (32, 1, 1, 512), length, ScaledDot())
        _hard_at("one query, additive score", (32, 1, 1, 512), length, Additive(512, 512, 512))
        _hard_at("all queries", (1, 8, length, 64), length, ScaledDot())
    torch.set_num_threads(threads)


def _hard_at(what: str, shape: Shape, keys: int, score: Score) -> None:
    """Time queries of a shape over transformed keys, as in a decoder."""
    batch, heads, _, features = shape
    query, value = torch.randn(shape), torch.randn(batch, heads, keys, features)
    key, align = score.keys(torch.randn(batch, heads, keys, features)), Hard().eval()
    calls: dict[str, Call] = {
        "soft": lambda: attend(query, key, value, score=score).output,
        "hard, by a product": lambda: attend(query, key, value, score=score, align=align, backend="reference").output,
        "hard": lambda: attend(query, key, value, score=score, align=align).output,
    }
    if not calls["hard"]().equal(calls["hard, by a product"]()):
        refuse("hard", f"{what}, {keys} keys", error(calls["hard"](), calls["hard, by a product"]().double()))
        return
    many = max(1, 2**19 // (batch * heads * shape[2] * keys * features // 64))
    took = milliseconds({**calls}, rounds=7, calls=many, clock=time.process_time)
    figures = {f"{name} ms": round(taken, 3) for name, taken in took.items()}
    tell("hard", f"{what}, {keys} keys", **figures, hard_over_soft=round(took["hard"] / took["soft"], 2))


# ----------------------------------------------------------------------------------------------------- crossovers


def crossovers() -> None:
    """sdpa vs. flex over sizes, and the cost of a new shape: the two constants of `measured.py`."""
    for shape in ((8, 12, 512, 64), (16, 12, 1024, 64), (4, 16, 2048, 128), (4, 16, 4096, 128)):
        for name, mask, position in _masks_and_biases(*shape):
            try:
                _compare_flex_sdpa(f"{name} {list(shape)}", shape, mask, position)
            except RuntimeError as failure:
                tell("crossovers", f"{name} {list(shape)}", failed=str(failure).splitlines()[0][:160])
    for length in (301, 302):
        x = torch.randn(2, 4, length, 64, device="cuda", dtype=HALF)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(x, x, x)
        torch.cuda.synchronize()
        tell("crossovers", "cuDNN, first call of a shape", ms=round((time.perf_counter() - begin) * 1e3, 1))


def _masks_and_biases(
    batch: int, heads: int, length: int, dim: int
) -> Iterator[tuple[str, Mask | None, Position | None]]:
    lengths = torch.linspace(length // 4, length, batch, device="cuda").long()
    documents = (torch.arange(length, device="cuda") // (length // 4)).expand(batch, length)
    yield "padding", Padding(lengths), None
    yield "causal and padding", Causal() & Padding(lengths), None
    yield "window of 256", Causal() & Window(256, 0), None
    yield "documents", Causal() & Documents(documents), None
    yield "ALiBi, causal", Causal(), ALiBi(heads)
    yield "Shaw, keys only", None, Relative(dim, 16, values=False).to("cuda", HALF)


def _compare_flex_sdpa(what: str, shape: Shape, mask: Mask | None, position: Position | None) -> None:
    leaves = [torch.randn(shape, device="cuda", dtype=HALF, requires_grad=True) for _ in range(3)]
    grad_output = torch.randn_like(leaves[0])
    calls: dict[str, Call] = {
        "sdpa": lambda: attend(*leaves, mask=mask, position=position, backend="sdpa").output,
        "flex": lambda: attend(*leaves, mask=mask, position=position, backend="flex").output,
    }
    actual, truth = calls["flex"](), calls["sdpa"]().double()
    if not right(actual, truth):
        refuse("crossovers", what, error(actual, truth))
        return
    forward = milliseconds(calls, rounds=7)
    both = milliseconds({name: with_gradients(call, leaves, grad_output) for name, call in calls.items()}, rounds=5)
    batch, heads, length, _ = shape
    tell(
        "crossovers",
        what,
        cells=f"{batch * heads * length**2:.1e}",
        flex_over_sdpa_forward=round(forward["flex"] / forward["sdpa"], 2),
        flex_over_sdpa_both=round(both["flex"] / both["sdpa"], 2),
    )


SECTIONS: dict[str, tuple[Callable[[], None], bool]] = {  # and whether it needs a GPU
    "overhead": (overhead, False),
    "kernels": (kernels, True),
    "additive": (additive, True),
    "hard": (hard, False),
    "watch": (watch, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"sections to run: {', '.join(SECTIONS)} [all supported]")
    parser.add_argument("--crossovers", action="store_true", help="measure where one backend overtakes another")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {unknown[0]!r} (known: {', '.join(SECTIONS)})")
    torch.manual_seed(0)
    machine = torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads"
    tell("machine", machine, torch=torch.__version__)
    if arguments.crossovers:
        crossovers()
        return
    for name in arguments.sections or SECTIONS:
        section, needs_gpu = SECTIONS[name]
        if needs_gpu and not GPU:
            tell(name, "skipped", reason="needs a CUDA device")
        else:
            section()


if __name__ == "__main__":
    main()

"""Time and memory of an encoder by text length: Linformer vs. full attention.

    python -m benchmarks.linformer                          n = 512 ... 65,536 on a GPU, ... 4,096 on a CPU
    python -m benchmarks.linformer --longest 8192           to a shorter one
    python -m benchmarks.linformer --out FOLDER             also linformer.json and linformer.png, a plot on log axes

linformer      qkv.models.linformer, 128 mixtures
full           qkv.models.bert of the same size, with whatever kernel the operator takes: on a GPU one that stores no
               scores, so that its memory grows with n, and its time with n^2
written out    the same with the scores stored, as attention is written down; both grow with n^2, until memory is full

The slopes are those of straight lines through the logarithms, for the longest half of the lengths: at short ones, a GPU
waits for its kernels to be launched. Memory is what a pass takes at most beside weights and input, and is measured on
a GPU alone. Nothing is timed before its result agrees with the same model in float64.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import GPU, MOST_ERROR, error, milliseconds, refuse, tell
from qkv.attention import Attend
from qkv.models import bert, linformer
from qkv.nn.interfaces import TextEncoder
from qkv.runtime.device import autocast

SHORTEST = 512
RANK = 128
SIZES: dict[str, Any] = {"dim": 256, "heads": 4, "layers": 4, "dropout": 0.0, "attention_dropout": 0.0}
WORD_LIST = 1000
DEVICE = torch.device("cuda" if GPU else "cpu")
PRECISION = "bfloat16" if GPU else "float32"


def a_linformer(length: int, sharing: str) -> TextEncoder:
    return linformer.Linformer(
        linformer.LinformerConfig(vocab_size=WORD_LIST, max_length=length, rank=RANK, sharing=sharing, **SIZES)
    )


def full(length: int, sharing: str) -> TextEncoder:
    return bert.Bert(bert.BertConfig(vocab_size=WORD_LIST, max_length=length, pooler=False, **SIZES))


def written_out(length: int, sharing: str) -> TextEncoder:
    model = full(length, sharing)
    for module in model.modules():
        if isinstance(module, Attend):
            module.backend = "reference"
    return model


CONTENDERS: dict[str, Callable[[int, str], TextEncoder]] = {
    "linformer": a_linformer,
    "full": full,
    "written out": written_out,
}


@dataclass(frozen=True)
class Measured:
    """Time and memory of one pass over texts of a given length."""

    contender: str
    length: int
    forward_ms: float
    both_ms: float  # forward and backward
    forward_mib: float | None  # None where it is not measured
    both_mib: float | None


def measure(name: str, length: int, batch: int, sharing: str) -> Measured | None:
    """Measure one contender; None if it runs out of memory."""
    torch.manual_seed(0)
    model = CONTENDERS[name](length, sharing).to(DEVICE)
    tokens = torch.randint(WORD_LIST, (batch, length), device=DEVICE)
    try:
        forward, both = _passes(model, tokens)
        rounds = 7 if length <= 2**14 else 5
        spent = [_mib(forward), _mib(both)]
        times = [milliseconds({name: call}, rounds, calls=1)[name] for call in (forward, both)]
    except torch.OutOfMemoryError:
        return None
    return Measured(name, length, *times, *spent)


def _passes(model: TextEncoder, tokens: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    weights = list(model.parameters())

    def forward() -> None:
        with torch.no_grad(), autocast(DEVICE, PRECISION):
            model(tokens)

    def both() -> None:
        with autocast(DEVICE, PRECISION):
            read = model(tokens)
        torch.autograd.grad(read.float().square().mean(), weights, allow_unused=True)

    return forward, both


def _mib(call: Callable[[], object]) -> float | None:
    """Peak memory allocated by a call."""
    if not GPU:
        return None
    call()  # libraries set themselves up
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


@torch.no_grad()
def wrongness(name: str, sharing: str) -> float:
    """Error of a contender relative to float64, on one short text."""
    torch.manual_seed(0)
    model = CONTENDERS[name](SHORTEST, sharing).to(DEVICE)
    tokens = torch.randint(WORD_LIST, (1, SHORTEST), device=DEVICE)
    with autocast(DEVICE, PRECISION):
        found = model(tokens).cpu()
    return error(found, model.double().cpu()(tokens.cpu()))


def slope(points: list[tuple[int, float]]) -> float | None:
    """Slope of the log-log fit over the longer half of the lengths; None for a single point."""
    kept = [(math.log(length), math.log(figure)) for length, figure in points[len(points) // 2 :]]
    if len(kept) < 2:
        return None
    middle, height = (sum(axis) / len(kept) for axis in zip(*kept, strict=True))
    steep: float = sum((x - middle) * (y - height) for x, y in kept) / sum((x - middle) ** 2 for x, _ in kept)
    return round(steep, 3)


def slopes(found: list[Measured]) -> dict[str, dict[str, float | None]]:
    """Of every contender and every figure that was measured."""
    return {
        name: {kind: slope(_points(found, name, kind)) for kind in ("forward_ms", "both_ms", "forward_mib", "both_mib")}
        for name in dict.fromkeys(one.contender for one in found)
    }


def _points(found: list[Measured], name: str, kind: str) -> list[tuple[int, float]]:
    return [(one.length, value) for one in found if one.contender == name and (value := getattr(one, kind)) is not None]


def draw(found: list[Measured], steep: dict[str, dict[str, float | None]], machine: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    kinds = [("both_ms", "milliseconds, forward and backward"), ("both_mib", "MiB at most, forward and backward")]
    kinds = [(kind, title) for kind, title in kinds if getattr(found[0], kind) is not None]
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(6 * len(kinds), 4.5), squeeze=False)
    for axis, (kind, title) in zip(axes[0], kinds, strict=True):
        for name, of in steep.items():
            lengths, values = zip(*_points(found, name, kind), strict=True)
            said = "" if of[kind] is None else f", slope {of[kind]:.2f}"
            axis.loglog(lengths, values, "o-", label=name + said)
        every = sorted({one.length for one in found})
        axis.set_xticks(every, [f"{length:,}" for length in every], rotation=30)
        axis.set_xticks([], minor=True)
        axis.set(xlabel="tokens", ylabel=title)
        axis.grid(visible=True, which="both", alpha=0.3)
        axis.legend()
    figure.suptitle(f"An encoder of 4 layers and 256 features on {machine}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=2**16 if GPU else 2**12, help="maximum length")
    parser.add_argument("--batch", type=int, default=4 if GPU else 1, help="batch size")
    parser.add_argument("--sharing", choices=linformer.SHARING, default="headwise")
    parser.add_argument("--out", type=Path, help="output directory")
    arguments = parser.parse_args()
    if arguments.longest < SHORTEST or arguments.batch < 1:
        parser.error(f"--longest must be {SHORTEST} or more, and --batch 1 or more")
    machine = torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads"
    tell("machine", machine, torch=torch.__version__, batch=arguments.batch, precision=PRECISION)
    found: list[Measured] = []
    for name in CONTENDERS:
        off = wrongness(name, arguments.sharing)
        if not off <= MOST_ERROR:
            refuse("linformer", name, off)
            continue
        length = SHORTEST
        while length <= arguments.longest:
            measured = measure(name, length, arguments.batch, arguments.sharing)
            if measured is None:
                tell("linformer", name, length=length, out_of_memory=True)
                break
            found.append(measured)
            tell("linformer", name, **{key: value for key, value in asdict(measured).items() if key != "contender"})
            length *= 2
    steep = slopes(found)
    for name, of in steep.items():
        tell("slopes", name, **of)
    if arguments.out is not None and found:
        arguments.out.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine,
            "torch": torch.__version__,
            "batch": arguments.batch,
            "precision": PRECISION,
            "sharing": arguments.sharing,
            "rank": RANK,
            "measured": [asdict(one) for one in found],
            "slopes": steep,
        }
        (arguments.out / "linformer.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        draw(found, steep, machine, arguments.out / "linformer.png")


if __name__ == "__main__":
    main()

"""Decoding speed of GPT-2 124M by batch size and by length of the context, with the limit that memory bandwidth sets.

    python -m benchmarks.decoding_limits measure --device cpu OUT.json
    python -m benchmarks.decoding_limits plot docs/decoding-speed.png CPU.json GPU.json

A step reads all weights once and the cached keys and values of every row, so with B rows of n cached tokens

    tokens/s <= B bandwidth / (bytes of the weights + B n bytes of a cached token)

The bandwidth is that of a copy of 1 GiB on the same machine. Times are of greedy decoding of random weights without the
prompt: the difference between runs of many new tokens and of one.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

LAYERS, DIM, VOCABULARY = 12, 768, 50_257
BATCHES = {"cpu": (1, 2, 4, 8, 16, 32, 64), "cuda": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
LENGTHS = (32, 128, 256, 512, 896)
ROWS = {"cpu": 8, "cuda": 64}  # where the length varies
NEW = 64
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
CACHE_BYTES = {"cpu": {"float32": 4, "bfloat16": 2, "int8": 2}, "cuda": {"float32": 4, "bfloat16": 2, "int8": 2}}
COLORS = {"float32": "#4c72b0", "bfloat16": "#dd8452", "int8": "#55a868"}


def bandwidth(device: str) -> float:
    """Bytes per second, read and written, of a copy."""
    import torch

    source = torch.zeros(2**28, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 2 * source.numel() * 4 / min(times)


def limit(bytes_per_s: float, device: str, dtype: str, batch: int, length: float) -> float:
    weights = WEIGHT_BYTES[dtype] * (12 * LAYERS * DIM**2 + DIM * VOCABULARY)
    cached = CACHE_BYTES[device][dtype] * 2 * LAYERS * DIM * length
    return batch * bytes_per_s / (weights + batch * cached)


def measure(device: str, rounds: int) -> dict[str, Any]:
    import torch

    from qkv.generation import Engine, GenerationConfig, Request, Tokens
    from qkv.models.gpt2 import GPT2, GPT2Config

    torch.manual_seed(0)
    model = GPT2(GPT2Config()).eval().to(device)
    found: dict[str, Any] = {"device": device, "threads": torch.get_num_threads(), "bandwidth": bandwidth(device)}
    found["name"] = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    for dtype in WEIGHT_BYTES:
        engine = Engine.build(model, dtype)  # type: ignore[arg-type]

        def seconds(batch: int, length: int, new: int, engine: Engine = engine) -> float:
            requests = [Request([row % 1000] * length, new) for row in range(batch)]
            begin = time.perf_counter()
            for _ in engine.decode(requests, Tokens(None), GenerationConfig(), batch_size=batch):
                pass
            return time.perf_counter() - begin

        def speed(batch: int, length: int) -> float:
            seconds(batch, length, 2)  # compiles
            seconds(batch, length, NEW + 1)
            pairs = [(seconds(batch, length, NEW + 1), seconds(batch, length, 1)) for _ in range(rounds)]
            return batch * NEW / statistics.median(many - one for many, one in pairs)

        found[dtype] = {
            "batch": {str(batch): speed(batch, LENGTHS[0]) for batch in BATCHES[device]},
            "length": {str(length): speed(ROWS[device], length) for length in LENGTHS},
        }
        print(json.dumps({dtype: found[dtype]}), flush=True)
    return found


def plot(out: Path, measured: list[dict[str, Any]]) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(measured), 2, figsize=(10, 3.6 * len(measured)), squeeze=False)
    for row, found in zip(axes, measured, strict=True):
        device = found["device"]
        for axis, by in zip(row, ("batch", "length"), strict=True):
            for dtype, color in COLORS.items():
                speeds = {int(size): speed for size, speed in found[dtype][by].items()}
                rows = {size: size if by == "batch" else ROWS[device] for size in speeds}
                mean_length = {size: (LENGTHS[0] if by == "batch" else size) + NEW / 2 for size in speeds}
                limits = [limit(found["bandwidth"], device, dtype, rows[size], mean_length[size]) for size in speeds]
                axis.plot(speeds.keys(), speeds.values(), "o-", color=color, label=dtype)
                axis.plot(speeds.keys(), limits, "--", color=color, alpha=0.6)
            axis.set(xscale="log", yscale="log", ylabel="tokens/s")
            axis.set_xticks(list(speeds), [str(size) for size in speeds])
            axis.minorticks_off()
            axis.set_xlabel("batch size" if by == "batch" else "tokens of the prompt")
            where = f"{found['name']}, {found['bandwidth'] / 1e9:,.0f} GB/s"
            axis.set_title(f"{where}: " + ("by batch size" if by == "batch" else f"{ROWS[device]} rows, by length"))
            axis.grid(alpha=0.3)
    axes[0][0].plot([], [], "--", color="gray", label="limit of the memory bandwidth")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("out", type=Path)
    plotting = commands.add_parser("plot")
    plotting.add_argument("out", type=Path)
    plotting.add_argument("measured", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "measure":
        options.out.write_text(json.dumps(measure(options.device, options.rounds), indent=1) + "\n", encoding="utf-8")
    else:
        plot(options.out, [json.loads(path.read_text(encoding="utf-8")) for path in options.measured])


if __name__ == "__main__":
    main()

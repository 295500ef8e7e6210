"""Check and tune the GPU decoder (`qkv.generation.gpu`): error against the model, tokens/s, and time per kernel.

    PYTHONPATH=src python benchmarks/gpu_decoding_probe.py [--budget 330] [--skip-checks] [--skip-sweep] [--rows 1 8 64]

Needs one GPU; about six minutes with 16 CPU cores. Parts:

    check   GPUStack.step against the float32 model: GPT-2 tiny and 124M, Transformer pre- and post-norm
    sweep   greedy decoding of GPT-2 124M, bfloat16, in a CUDA graph: coordinate descent over the choices of each linear
            layer, starting from `choose`, with programmatic dependent launch (PDL)
    table   tokens/s over 128 tokens after 32 with the best choices, one or eight steps per graph; time per kernel

Notes. Floor of GPT-2 124M in bfloat16 at 4.2 TB/s: 59 us a step for the weights (41 us layers, 18 us output layer),
plus 2.4 us per row for 160 cached tokens. A step has 12 * 5 + 1 + 1 + 2 = 64 launches. Compilation takes most of the
time of a first run, so worker processes compile all candidates in advance into Triton's disk cache.
"""

import argparse
import itertools
import json
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from qkv.generation.decoder_stack import Stack, decoder_stack
from qkv.generation.gpu.gpu_stack import AttentionChoice, Choice, GPUStack, GreedySelection, choose
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.transformer import Transformer, TransformerConfig

START = time.perf_counter()
PROMPT, TOKENS = 32, 128
LIMITS = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 6e-2}
SHAPES = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072), "readout": (50257, 768)}
Choices = dict[str, Choice | AttentionChoice]  # of the layers of SHAPES, and of attention under "attend"


def seconds() -> float:
    return time.perf_counter() - START


def say(*what: object) -> None:
    print(f"[{seconds():5.0f}s]", *what, flush=True)


# ------------------------------------------------------------------------------------------------------------- models


def gpt2(layers: int = 12, tiny: bool = False) -> GPT2:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=1003, dim=192, heads=6, layers=2) if tiny else GPT2Config(layers=layers)
    with torch.device("cuda"):
        model = GPT2(config).eval()
    return perturbed(model)


def transformer(norm: str) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        source_vocab_size=8003, target_vocab_size=8003, dim=512, heads=8, encoder_layers=1, decoder_layers=3,
        ffn_dim=2048, norm=norm, activation="relu" if norm == "pre" else "silu", output_bias=True,
    )  # fmt: skip
    with torch.device("cuda"):
        model = Transformer(config).eval()
    return perturbed(model)


def perturbed(model: torch.nn.Module) -> torch.nn.Module:
    """Random biases and norms, which are trivial at initialization."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


# ------------------------------------------------------------------------------------------------------------- checks


@torch.no_grad()
def check(model_name: str, rows: int, dtype: str) -> tuple[str, float]:
    """Relative error of the logits after ragged prompts and three steps; rows 1 ... share tokens through the table."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(rows)
    prompt, steps, sources = 37, 3, 3
    if model_name.startswith("transformer"):
        model = transformer(model_name.split()[1])
        source = torch.randint(5, 8003, (sources, 23), device="cuda")
        lengths = torch.tensor([23, 11, 17], device="cuda")
        memory = model.encode(source, lengths)
        stack = GPUStack(decoder_stack(model), dtype, rows, 64, sources, 40)
        stack.set_memory(range(sources), memory.hidden, lengths)
        of = torch.arange(rows, device="cuda") % sources
        stack.memory_of.copy_(of)
        vocabulary = 8003
    else:
        model = gpt2(tiny=model_name == "gpt2 tiny")
        stack = GPUStack(decoder_stack(model), dtype, rows, 64)
        vocabulary = model.config.vocab_size
    ids = torch.randint(0, vocabulary, (rows, prompt + steps), device="cuda")
    begins = [prompt - row % 4 for row in range(rows)]  # ragged prompts
    stack.prefill(range(rows), [ids[row, :begin].tolist() for row, begin in enumerate(begins)])
    for step in range(steps):
        positions = torch.tensor([begin + step for begin in begins], dtype=torch.int32, device="cuda")
        now = ids.gather(1, positions[:, None].long())[:, 0].int()
        stack.logits.fill_(float("nan"))
        logits = stack.step(now, positions)
    truth = model(source[of], ids, lengths[of]) if model_name.startswith("transformer") else model(ids)
    truth = truth[torch.arange(rows), positions.long()]
    token, log_p = GreedySelection(rows, vocabulary)(logits)
    if not torch.equal(token.long(), logits.argmax(-1)):
        return "greedy selection differs", 9.0
    if not torch.allclose(log_p, logits.log_softmax(-1).amax(-1), atol=1e-4):
        return "log-probabilities differ", 9.0
    return "", ((logits - truth).norm() / truth.norm()).item()


def attempt(function, *arguments):
    """Result of a function, or the end of its traceback."""
    try:
        return function(*arguments), None
    except Exception:  # report and go on with other cases
        return None, traceback.format_exc()[-1500:]


def run_checks(pool: ProcessPoolExecutor) -> bool:
    names = ("gpt2 tiny", "gpt2 124M", "transformer pre", "transformer post")
    cases = list(itertools.product(names, (1, 3, 8, 64), ("float32", "bfloat16", "int8")))
    futures = {pool.submit(attempt, check, *case): case for case in cases}
    good, errors = True, {}
    for future in as_completed(futures):
        case = futures[future]
        result, failure = future.result()
        if failure is not None:
            say("CHECK FAILED", *case, failure)
            good = False
            continue
        complaint, error = result
        errors[case] = error
        if complaint or not error <= LIMITS[case[2]]:
            say("CHECK FAILED", *case, complaint, f"error {error:.2e}")
            good = False
    for name, dtype in itertools.product(names, LIMITS):
        row = [f"{errors.get((name, rows, dtype), float('nan')):.1e}" for rows in (1, 3, 8, 64)]
        say(f"check {name:17s} {dtype:9s} rows 1, 3, 8, 64:", *row)
    return good


# -------------------------------------------------------------------------------------------------------------- timing


def default(rows: int) -> Choices:
    return {name: choose(rows, *shape) for name, shape in SHAPES.items()} | {"attend": AttentionChoice()}


def build(stack: Stack, dtype: str, rows: int, choices: Choices, pdl: bool) -> GPUStack:
    by_shape = {shape: choices.get(name, choose(rows, *shape)) for name, shape in SHAPES.items()}
    return GPUStack(
        stack, dtype, rows, PROMPT + TOKENS + 8, pdl=pdl, attention=choices["attend"],
        chooser=lambda rows, outputs, inputs: by_shape[outputs, inputs],
    )  # fmt: skip


class Greedy:
    """Greedy decoding of GPT-2 in a CUDA graph."""

    @torch.no_grad()
    def __init__(self, stack: Stack, dtype: str, rows: int, choices: Choices, pdl: bool, steps: int = 1) -> None:
        self.stack = build(stack, dtype, rows, choices, pdl)
        self.select = GreedySelection(rows, self.stack.vocab_size, pdl=pdl)
        self.ids = torch.full((rows,), 11, dtype=torch.int32, device="cuda")
        self.positions = torch.zeros(rows, dtype=torch.int32, device="cuda")
        self.steps = steps
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.once()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(steps):
                self.once()
        torch.cuda.synchronize()

    def once(self) -> None:
        self.select(self.stack.step(self.ids, self.positions), self.ids, self.positions)

    def milliseconds(self, position: int, count: int, rounds: int) -> float:
        """Median time of `count` steps from `position` on, per step."""
        times = []
        for _ in range(rounds):
            self.positions.fill_(position)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(count // self.steps):
                self.graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / (count // self.steps * self.steps))
        return sorted(times)[rounds // 2]


def warm(rows: int, dtype: str, choices: Choices, pdl: bool) -> None:
    """Compile all kernels of a choice, on one layer."""
    stack = build(decoder_stack(gpt2(1)), dtype, rows, choices, pdl)
    ids = torch.zeros(rows, dtype=torch.int32, device="cuda")
    GreedySelection(rows, stack.vocab_size, pdl=pdl)(stack.step(ids, ids.clone()), ids, ids.clone())
    torch.cuda.synchronize()


def candidates(rows: int, name: str) -> list[Choice] | list[AttentionChoice]:
    if name == "attend":
        shares = (32, 64, 256) if rows <= 8 else (256,)
        sizes = ((2048, 2), (2048, 4), (4096, 4), (4096, 8), (8192, 4), (8192, 8))
        return [AttentionChoice(*size, share) for size in sizes for share in shares if size[0] // 64 <= share]
    outputs, inputs = SHAPES[name]
    found = []
    if rows <= 4:
        for warps, tiles in itertools.product((2, 4, 8), (1, 2, 4)):
            if (name == "readout") == (tiles > 1) or tiles == 2:
                found.append(Choice("vector", warps * tiles, warps=warps))
        return found
    if rows <= 16:
        grid = itertools.product((16, 32), (64, 128, 256), (2, 4), (3, 5), (1, 2, 4))
    else:
        grid = itertools.product((16, 32, 64, 128), (64, 128), (4, 8), (3, 5), (1, 2, 4))
    for block_n, block_k, warps, stages, split in grid:
        programs = -(-outputs // block_n) * split
        memory = stages * block_k * 2 * (block_n + max(16, rows))
        wanted = (48, 400) if name != "readout" else (200, 4000)
        if not wanted[0] <= programs <= wanted[1] or memory > 110_000 or split * block_k * 2 > inputs:
            continue
        if (block_k == 256) != (stages == 3) and rows <= 16 and block_k != 128:
            continue
        found.append(Choice("matrix", block_n, block_k, warps, stages, split))
    found = found[:: max(1, len(found) // 10)][:10]
    if rows > 16:
        found += [Choice("cublas", 32, warps=4), Choice("cublas", 64, warps=4)]
    return found


def without_cublas(choices: Choices) -> Choices:
    return {name: choice for name, choice in choices.items() if getattr(choice, "kind", None) != "cublas"}


def short(choice: Choice | AttentionChoice) -> str:
    if isinstance(choice, AttentionChoice):
        return f"{choice.elements} w{choice.warps} share {choice.share}"
    return f"{choice.kind[:3]} n{choice.block_n} k{choice.block_k} w{choice.warps} s{choice.stages} /{choice.split}"


def sweep(stack: Stack, rows: int, until: float) -> tuple[Choices, dict[str, object]]:
    """Best choice per linear layer, one layer after the other."""
    best = default(rows)
    log: dict[str, object] = {}

    def cost(choices: Choices) -> float:
        made, failure = attempt(Greedy, stack, "bfloat16", rows, choices, True)
        if made is None:
            say("candidate failed", failure[-400:])
            return float("inf")
        return min(made.milliseconds(96, 32, 3) for _ in range(2))

    lowest = first = cost(best)
    for name in ("up", "down", "attend", "qkv", "out", "readout"):
        tried = {short(best[name]): lowest}
        for choice in candidates(rows, name):
            if seconds() > until:
                say("out of time in the sweep")
                break
            if choice == best[name]:
                continue
            took = cost(best | {name: choice})
            tried[short(choice)] = took
            if took < lowest * 0.997:
                best, lowest = best | {name: choice}, took
        ranked = sorted(tried.items(), key=lambda item: item[1])
        log[name] = ranked
        say(f"rows {rows:2d} {name:7s}", "; ".join(f"{key} {1e3 * value:.1f}" for key, value in ranked[:6]), "us")
        say(f"rows {rows:2d} {name:7s} worst", "; ".join(f"{key} {1e3 * value:.1f}" for key, value in ranked[-2:]))
    say(f"rows {rows}: step {1e3 * first:.1f} -> {1e3 * lowest:.1f} us")
    return best, log


def profile(greedy: Greedy) -> list[tuple[str, float, float]]:
    """Median time of each kind of launch in microseconds, and the sum over a step, from the profiler."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    greedy.positions.fill_(96)
    with profiler(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(5):
            greedy.graph.replay()
        torch.cuda.synchronize()
    events = sorted((e.time_range.start, e.name, e.device_time) for e in trace.events() if e.device_time > 0)
    groups: dict[str, list[float]] = {}
    order = ("qkv", "attend", "out", "up", "down")
    place = 0
    for _, name, took in events:
        if name.startswith("embed"):
            place = 0
        if name.startswith(("vector_linear", "matrix_linear", "attend")):
            label = order[place % 5] if place < 60 else "readout"
            place += 1
        else:
            label = name[:24]
        groups.setdefault(label, []).append(took)
    return [(label, sorted(times)[len(times) // 2], sum(times) / 5) for label, times in groups.items()]


def launch_floor(pdl: bool) -> float:
    """Microseconds per launch of a kernel that does almost nothing, in a graph of 64."""
    from qkv.generation.gpu import kernels

    options = {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}
    floats, ints = torch.zeros(64, device="cuda"), torch.zeros(64, dtype=torch.int32, device="cuda")

    def launch() -> None:
        parts = floats, ints, floats
        kernels.select[(1,)](*parts, ints, floats, None, None, VOCAB=9, PARTS=1, BLOCK=1, num_warps=1, **options)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(64):
            launch()
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 640 * 1e3)
    return sorted(times)[10]


# ---------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=330.0, help="seconds after which sweeps stop")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--skip-sweep", action="store_true")
    arguments = parser.parse_args()
    say(torch.cuda.get_device_name(), torch.__version__)
    good, lines, record = True, [], {}
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        if not arguments.skip_checks:
            good = run_checks(pool)
            say("checks", "passed" if good else "FAILED")
        if not arguments.skip_sweep:
            jobs = []
            for rows in arguments.rows:
                base = default(rows)
                options = {name: candidates(rows, name) for name in base}
                for index in range(max(map(len, options.values()))):
                    picked = {name: found[index % len(found)] for name, found in options.items()}
                    jobs.append((rows, "bfloat16", base | picked, True))
            futures = [pool.submit(attempt, warm, *job) for job in jobs]
            for future in as_completed(futures):
                if (failure := future.result()[1]) is not None:
                    say("compilation failed", failure[-600:])
            say(f"compiled {len(jobs)} sets of candidates")
    for pdl in (False, True):
        floor, failure = attempt(launch_floor, pdl)
        say(f"empty launch in a graph, PDL {pdl}:", f"{floor:.2f} us" if failure is None else failure)
    stack = decoder_stack(gpt2())
    share = (arguments.budget - seconds()) / max(1, len(arguments.rows))
    for rows in arguments.rows:
        best = default(rows)
        if not arguments.skip_sweep:
            found, failure = attempt(sweep, stack, rows, seconds() + share)
            if failure is None:
                best, record[f"sweep {rows}"] = found
            else:
                say("sweep failed", failure)
        for name, choice in best.items():
            lines.append(f"rows {rows:2d} best {name:7s} {short(choice)}")
        for label, dtype, choices, pdl, steps in (
            ("best", "bfloat16", best, True, 1),
            ("best, 8 steps a graph", "bfloat16", best, True, 8),
            ("best, no PDL", "bfloat16", best, False, 1),
            ("default", "bfloat16", default(rows), True, 1),
            ("best", "int8", without_cublas(best), True, 1),
            ("default", "float32", default(rows), True, 1),
        ):
            greedy, failure = attempt(Greedy, stack, dtype, rows, choices, pdl, steps)
            if greedy is None:
                lines.append(f"rows {rows:2d} {label:22s} {dtype:9s} failed: {failure[-300:]}")
                continue
            took, failure = attempt(greedy.milliseconds, PROMPT, TOKENS, 5)
            if took is None:
                lines.append(f"rows {rows:2d} {label:22s} {dtype:9s} failed: {failure[-300:]}")
                continue
            speed = f"{1e3 * took:8.1f} us/step {1e3 * rows / took:10,.0f} tok/s"
            lines.append(f"rows {rows:2d} {label:22s} {dtype:9s} {speed}")
            record[f"{rows} {label} {dtype}"] = took
            if label == "best, no PDL":
                kernels, failure = attempt(profile, greedy)
                for name, median, total in kernels or []:
                    lines.append(f"rows {rows:2d} kernel {name:24s} {median:6.2f} us, {total:7.1f} us a step")
                if failure is not None:
                    lines.append(failure[-300:])
            del greedy
        say("done with rows", rows)
    print("\n".join(lines))
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "gpu_decoding_probe.json").write_text(json.dumps(record, default=str, indent=1))
    say("finished", "checks passed" if good else "CHECKS FAILED")
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

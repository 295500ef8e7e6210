"""Time of a training step by part, and the efficiency that it predicts for many GPUs.

    torchrun --standalone --nproc-per-node 2 benchmarks/scaling.py measure     # on this machine
    python benchmarks/scaling.py predict --parameters 124e6 --compute 0.1      # table of docs/scaling.md

`measure` times the parts of a step of GPT-2: host (collating the batch and taking this process's part), compute
(forward and backward without communication, and the update), and communication (what the step takes longer with it).
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

GPUS = (1, 8, 64, 512)
PER_NODE = 8
ASSUMPTIONS = {
    "nvlink": 300e9,  # bytes/s that a GPU sends within a node
    "network": 40e9,  # bytes/s that a GPU sends to another node: 400 Gbit/s, of which 80 % are reached
    "latency": 10e-6,  # seconds per message between nodes
    "overlap": 0.5,  # fraction of the compute time that can hide communication: the backward pass but its beginning
    "gradient_bytes": 4,  # per parameter
}


def allreduce_seconds(parameters: float, gpus: int, assumed: dict[str, float]) -> float:
    """Time of a ring all-reduce within each node, then of one between nodes on 1 / PER_NODE of the gradients per GPU.

    t = 2 (m - 1) / m B / nvlink + 2 (k - 1) / k (B / m) / network + 2 (k - 1) latency,   m GPUs in each of k nodes
    """
    size = parameters * assumed["gradient_bytes"]
    local, nodes = min(gpus, PER_NODE), max(1, gpus // PER_NODE)
    inside = 2 * (local - 1) / local * size / assumed["nvlink"]
    between = 2 * (nodes - 1) / nodes * (size / local) / assumed["network"] + 2 * (nodes - 1) * assumed["latency"]
    return inside + between


def efficiency(parameters: float, compute: float, host: float, gpus: int, assumed: dict[str, float]) -> float:
    """Time of a step on one GPU divided by that on each of many, with the same number of tokens per GPU.

    The host prepares the next batch, of all GPUs, while the GPU computes; only what takes longer counts.
    """
    exposed = max(0.0, allreduce_seconds(parameters, gpus, assumed) - assumed["overlap"] * compute)
    return compute / (max(compute, host * gpus) + exposed)


def predict(arguments: argparse.Namespace) -> None:
    assumed = {name: getattr(arguments, name) for name in ASSUMPTIONS}
    print("| GPUs | all-reduce, ms | exposed, ms | host, ms | efficiency |\n|---:|---:|---:|---:|---:|")
    for gpus in GPUS:
        communication = allreduce_seconds(arguments.parameters, gpus, assumed)
        exposed = max(0.0, communication - assumed["overlap"] * arguments.compute)
        host = arguments.host * gpus
        share = efficiency(arguments.parameters, arguments.compute, arguments.host, gpus, assumed)
        print(f"| {gpus} | {communication * 1e3:.2f} | {exposed * 1e3:.2f} | {host * 1e3:.2f} | {share:.1%} |")


def timed(function: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, after two calls that do not count."""
    seconds = []
    for number in range(repeats + 2):
        began = time.perf_counter()
        function()
        if number > 1:
            seconds.append(time.perf_counter() - began)
    return median(seconds)


def measure(arguments: argparse.Namespace) -> None:
    import torch

    from qkv.datasets.dataset import TextDataset
    from qkv.models.gpt2 import GPT2, GPT2Config
    from qkv.registry import lookup
    from qkv.tasks.base.train_config import TrainConfig
    from qkv.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
    from qkv.training.distributed import SplitTrainStep, is_main, parallelize, process_group, split, world_size
    from qkv.training.optimizer import build_optimizer
    from qkv.training.step import TrainStep

    with process_group("auto" if torch.cuda.is_available() else "cpu") as device:
        torch.manual_seed(0)
        text = "to be or not to be that is the question " * 2000
        tokenizer = lookup("tokenizer", "char").train([text], lowercase=False)
        sizes = {"dim": arguments.dim, "layers": arguments.layers, "heads": 4, "max_length": arguments.length}
        config = GPT2Config(vocab_size=len(tokenizer), dropout=0.0, **sizes)
        train = TrainConfig(batch_size=arguments.rows * arguments.length, parallel=arguments.parallel)
        options = LanguageModelingConfig(length=arguments.length)
        data = TextDataset({"train": text, "valid": text[:2000]})
        task = LanguageModelingTask(data, tokenizer, config, options, train, 0)
        model = GPT2(config).to(device)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        rows = task.epoch(0)[0]
        batch = split(task.batch(rows), 1).to(torch.device(device))
        part, _ = batch.parts[0]

        def update(step: TrainStep[Any], batch: Any) -> Callable[[], None]:
            optimizer = build_optimizer(model, train)

            def run() -> None:
                step(batch)
                optimizer.step(1e-3)

            return run

        host = timed(lambda: split(task.batch(rows), 1), arguments.repeats)
        alone = TrainStep[Any](model, partial(task.loss, model), "float32", 1.0)
        compute = timed(update(alone, part), arguments.repeats)
        together = SplitTrainStep(parallelize(task, model, train), "float32", 1.0)
        whole = timed(update(together, batch), arguments.repeats)
        if is_main():
            tokens = f"{arguments.rows} x {arguments.length} tokens"
            print(f"{parameters / 1e6:.2f} M parameters, {tokens}, {world_size()} process(es), {arguments.parallel}")
            print("| part of a step | ms |\n|---|---:|")
            parts = {"compute": compute, "communication": whole - compute, "host": host, "all": whole + host}
            for name, seconds in parts.items():
                print(f"| {name} | {seconds * 1e3:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.set_defaults(run=measure)
    command.add_argument("--dim", type=int, default=128)
    command.add_argument("--layers", type=int, default=4)
    command.add_argument("--length", type=int, default=128)
    command.add_argument("--rows", type=int, default=16)
    command.add_argument("--repeats", type=int, default=20)
    command.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    command = commands.add_parser("predict")
    command.set_defaults(run=predict)
    command.add_argument("--parameters", type=float, required=True, help="number of parameters")
    command.add_argument("--compute", type=float, required=True, help="seconds of a step on one GPU")
    command.add_argument("--host", type=float, default=0.0, help="host seconds per step and GPU's share of a batch")
    for name, value in ASSUMPTIONS.items():
        command.add_argument(f"--{name.replace('_', '-')}", type=float, default=value)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()

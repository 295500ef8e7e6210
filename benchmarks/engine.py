"""Time of `qkv train` outside forward, backward and optimizer: the trainer compared with its bare step.

    QKV_DATA=... python -m benchmarks.engine                 GPT-2: 12 layers of width 768, 32 x 1,024 characters
    QKV_DATA=... python -m benchmarks.engine --steps 400     longer runs

(Without a GPU: 4 layers of width 128, 12 x 64 characters.) The trainer loads batches, updates the weights and logs
every 20 steps; its speed is the one in its log. The bare step is the same compiled and captured step with the same
optimizer, on one batch that stays on the device. They are timed in turns; the overhead of a round is
1 - trainer / bare step.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.timing import GPU, tell
from qkv.training import job
from qkv.training.display import Display
from qkv.training.environment import current_environment
from qkv.training.loop import build_train_step, prepare
from qkv.training.optimizer import build_optimizer
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.update import GuardedUpdate

DEVICE = "cuda" if GPU else "cpu"
WARM_UP = 40  # steps, which compile and capture


def recipe(steps: int) -> Recipe:
    layers, dim, heads, length, rows = (12, 768, 12, 1024, 32) if GPU else (4, 128, 4, 64, 12)
    epochs = -(-steps * rows * length // 1_000_000)  # the text has a million characters
    sizes = [f"model.layers={layers}", f"model.dim={dim}", f"model.heads={heads}", f"model.max_length={length}"]
    never = ["train.ema=0.0", "train.validate_every=1000000", "train.save_every=1000000", "train.valid_size=1"]
    run = [
        f"task.length={length}",
        f"train.batch_size={rows * length}",
        f"train.epochs={epochs}",
        "train.compile=always",
    ]
    return read_recipe("shakespeare-gpt", [*sizes, *run[: 4 if GPU else 3], *never])


def trainer_speed(steps: int) -> float:
    """Return the tokens/s of the trainer after its first steps."""
    with tempfile.TemporaryDirectory() as folder:
        job.begin(recipe(steps), Path(folder) / "run", DEVICE, loggers=())
        rows = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    speeds = [row["tokens_per_s"] for row in rows if row["kind"] == "train" and row["step"] > WARM_UP]
    return statistics.harmonic_mean(speeds[:-1])  # the last entry includes the final save


def bare_speed(steps: int) -> float:
    """Return the tokens/s of the step alone."""
    plan = recipe(steps)
    _, _, task, model = job._prepare(plan, None, DEVICE, Display(), force=True)
    environment = current_environment(model, task, plan.train)
    step = build_train_step(task, model.train(), plan.train, environment)
    update = GuardedUpdate(build_optimizer(model, plan.train), plan.train, model.device)
    batch = prepare(task, task.epoch(0)[0], 1, filled=environment.graphs).to(model.device)
    report = None
    for number in range(steps):
        if number == WARM_UP:
            _synchronize()
            began = time.perf_counter()
        report = update(number + 1, step(batch), plan.train.lr)
    assert report is not None
    assert not report.read().skipped
    _synchronize()
    return batch.tokens * (steps - WARM_UP) / (time.perf_counter() - began)


def _synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pairs = [(trainer_speed(options.steps), bare_speed(options.steps)) for _ in range(options.rounds)]
    overheads = [1 - trainer / bare for trainer, bare in pairs]
    tell(
        "engine", f"GPT-2 on {DEVICE}", trainer=[round(trainer) for trainer, _ in pairs],
        bare_step=[round(bare) for _, bare in pairs], overhead=f"{statistics.median(overheads):.1%}",
        overhead_range=[f"{value:.1%}" for value in (min(overheads), max(overheads))],
    )  # fmt: skip


if __name__ == "__main__":
    main()

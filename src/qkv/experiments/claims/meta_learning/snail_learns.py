"""Claim 45: SNAIL is good at supervised and at reinforcement learning."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, Scale, SweepClaim
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.meta_learning.episodes import few_shot_accuracy
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register
from qkv.runtime.device import pick_device

SMALL_POLICY = (
    "train.epochs=16", "train.batch_size=256", "train.lr=3e-3", "train.validate_every=512", "train.valid_size=1000",
)  # fmt: skip
STEPS = {"small": 1000, "full": 10_000}  # of few-shot classification
BASELINES = {"reward": "SNAIL", "gittins": "Gittins index", "ucb": "UCB1", "random": "random"}


@register("claim", "snail-learns")
class SnailLearns(SweepClaim):
    """Reward of SNAIL in bandit games, and its accuracy in few-shot classification, beside simple baselines."""

    number = 45
    title = "SNAIL is good at supervised and at reinforcement learning"
    statement = (
        "One architecture of attention and convolutions over the episode learns to classify from one example per "
        "class, and to explore and exploit in a game with unknown rewards."
    )
    notes = (Note("003", "Transformers family"),)
    equation = "h = Attend(Convolve(Attend(x)));   y_t = W h_t + b: logits of the label, or of the next action"
    source = (
        "src/qkv/models/snail.py::SNAIL",
        "src/qkv/models/snail.py::SNAILPolicy",
        "src/qkv/experiments/claims/meta_learning/episodes.py::draw_episodes",
    )
    hypothesis = (
        "In bandit games of 5 arms and 10 pulls, SNAIL gets at least 0.5 more rewards per game than random pulls, and "
        "more than UCB1. In 5-way 1-shot classification of vectors, in which 8 of 32 features depend on the class and "
        "the others are noise, its accuracy is at least 5 points above that of the nearest neighbor."
    )
    criteria = (
        Difference("reward per game: SNAIL", "reward per game: random", low=0.5),
        Difference("reward per game: SNAIL", "reward per game: UCB1", low=0.0),
        Difference("accuracy: SNAIL", "accuracy: nearest neighbor", low=5.0),
    )
    figure = (
        Panel(
            "Bandits: 5 arms, 10 pulls", "reward per game",
            points=tuple(f"reward per game: {name}" for name in BASELINES.values()),
        ),
        Panel(
            "5-way 1-shot classification of vectors", "accuracy, % (by chance 20 %)",
            points=("accuracy: SNAIL", "accuracy: nearest neighbor"),
        ),
    )  # fmt: skip
    limits = (
        "Both problems are simple. The Gittins index shows what a nearly optimal player gets in the games. A "
        " nearest neighbor with a learned metric would also find the features that matter."
    )
    recipe: ClassVar = {"small": "bandit-snail", "full": "bandit-snail"}
    factors: ClassVar = {"data.arms": ("5",)}
    labels: ClassVar = {"arms=5": "SNAIL"}
    overrides: ClassVar = {"small": SMALL_POLICY, "full": ()}

    exclusive = True

    def measure(self, scale: Scale, seeds: Sequence[int], folder: Path, device: str) -> Measurements:
        (result,) = self.run_sweeps(scale, seeds, folder, device).values()
        games = result.outcomes
        values = {
            f"reward per game: {name}": tuple(game.scores[key] for game in games) for key, name in BASELINES.items()
        }
        episodes = [few_shot_accuracy(seed, STEPS[scale], pick_device(device)) for seed in seeds]
        for name, accuracies in zip(("SNAIL", "nearest neighbor"), zip(*episodes, strict=True), strict=True):
            values[f"accuracy: {name}"] = accuracies
        return Measurements(tuple(seeds), values)

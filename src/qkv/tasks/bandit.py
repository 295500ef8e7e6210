"""Multi-armed bandit task: choose the next arm given the arms pulled so far and their rewards.

The model plays new games in every training step and is trained on its rewards by policy gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.datasets.batching import numbered_batches
from qkv.datasets.corpora.synthetic.bandits import Bandits
from qkv.datasets.dataset import BanditDataset
from qkv.datasets.tensor_batch import TensorBatch
from qkv.metrics import Metric
from qkv.models.snail import SNAILPolicy
from qkv.nn.losses import gumbel, policy_gradient
from qkv.registry import register
from qkv.tasks.bandit_policies import baselines, play
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.task import Task
from qkv.types import Float, Int, Tensor

ENTROPY = 0.02  # weight of the entropy bonus
GAMES = 2**13  # per epoch
EVAL_GAMES = 10_000
VALID_SEED, TEST_SEED = 2**31, 2**31 + 1  # outside the range of run seeds
EVAL_PULLS = 2**16  # simulated at a time in evaluation
Z_95 = 1.96  # standard errors of a 95 % confidence interval


@dataclass(frozen=True)
class GameBatch(TensorBatch):
    """Games: the reward of each arm at each pull, and the player's uniform samples."""

    rewards: Float[Tensor, "batch pulls arms"]
    uniform: Float[Tensor, "batch pulls arms"]

    @property
    def tokens(self) -> int:
        return self.rewards.shape[0] * self.rewards.shape[1]


@register("task", "bandit")
class BanditTask(Task):
    """Games determined by the seed and their number. The score is the reward per game, next to that of baselines."""

    title = "bandits"
    cli_command = "view"
    metrics: ClassVar = {
        "reward": Metric("reward"),
        "margin": Metric("margin", higher_is_better=False),  # half width of the 95 % confidence interval
        **{name: Metric(name) for name in ("random", "thompson", "ucb", "gittins")},
    }
    model = SNAILPolicy
    datasets = (BanditDataset,)
    batch_units = ("examples",)
    from_data = ("actions", "length")
    evaluates_train = False  # it is endless
    capturable = True
    splittable = False  # advantages are divided by their standard deviation over the batch

    @classmethod
    def sizes(cls, data: BanditDataset, tokenizer: None) -> dict[str, Any]:
        return {"actions": data.splits["train"].arms, "length": data.splits["train"].pulls}

    def setup(self, data: BanditDataset) -> None:
        self.train, self.valid = data.splits["train"], data.splits["valid"]

    def describe(self) -> str:
        return f"{self.train.arms} arms, {self.train.pulls} pull(s)"

    def epoch(self, number: int) -> list[list[int]]:
        return numbered_batches(GAMES, self.train_config.batch_size, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> GameBatch:
        return draw_games(self.train, self.seed, rows)

    def loss(self, model: SNAILPolicy, batch: GameBatch) -> Float[Tensor, ""]:
        actions, rewards = rollout(model, batch)
        logits, expected = model(actions[:, :-1], rewards[:, :-1])
        return policy_gradient(logits.float(), expected.float(), actions, rewards, ENTROPY)

    def validate(self, model: SNAILPolicy) -> dict[str, float]:
        return scores(model, self.valid, VALID_SEED, self.train_config.valid_size)

    def evaluate(self, model: SNAILPolicy, data: BanditDataset, split: str) -> Evaluation:
        seed = VALID_SEED if split == "valid" else TEST_SEED
        return Evaluation(EVAL_GAMES, "games", scores(model, data.splits[split], seed, EVAL_GAMES))


def draw_games(bandits: Bandits, seed: int, numbers: Sequence[int]) -> GameBatch:
    """Draw the games of these numbers as a batch."""
    games = bandits.sample(seed, numbers)
    return GameBatch(torch.from_numpy(games.rewards), torch.from_numpy(games.uniform))


@torch.no_grad()
def rollout(model: SNAILPolicy, games: GameBatch) -> tuple[Int[Tensor, "batch pulls"], Float[Tensor, "batch pulls"]]:
    """Play the games; return the sampled actions and their rewards."""
    batch, pulls, _ = games.rewards.shape
    actions = torch.zeros(batch, 0, dtype=torch.long, device=games.rewards.device)
    rewards = torch.zeros(batch, 0, device=games.rewards.device)
    noise = gumbel(games.uniform)
    for pull in range(pulls):
        logits, _ = model(actions, rewards)
        arm = (logits[:, -1].float() + noise[:, pull]).argmax(dim=-1, keepdim=True)
        actions = torch.cat((actions, arm), dim=1)
        rewards = torch.cat((rewards, games.rewards[:, pull].gather(1, arm)), dim=1)
    return actions, rewards


@torch.inference_mode()
def scores(model: SNAILPolicy, bandits: Bandits, seed: int, count: int) -> dict[str, float]:
    """Mean reward per game of the model, and of the baselines on the same games."""
    games = bandits.sample(seed, range(count))
    chunk_size = max(1, EVAL_PULLS // bandits.pulls)
    chunks = [
        GameBatch(
            torch.from_numpy(games.rewards[begin : begin + chunk_size]),
            torch.from_numpy(games.uniform[begin : begin + chunk_size]),
        )
        for begin in range(0, count, chunk_size)
    ]
    rewards = torch.cat([rollout(model, chunk.to(model.device))[1].sum(dim=1).double() for chunk in chunks])
    deviation = float(rewards.std()) if count > 1 else math.nan
    return {
        "reward": float(rewards.mean()),
        "margin": Z_95 * deviation / math.sqrt(count),
        **{name: float(play(games, policy).mean()) for name, policy in baselines(bandits).items()},
    }

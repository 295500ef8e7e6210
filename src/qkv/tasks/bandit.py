"""Playing bandits as a task to learn: from the arms pulled so far, and what they paid, to the next arm.

The model plays games anew in every step of training, and learns by policy gradient from what it won.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.data.bandits import Bandits
from qkv.data.registry import LoadedData
from qkv.data.tensor_batch import TensorBatch
from qkv.metrics import Metric
from qkv.models.snail import SNAILPolicy
from qkv.objectives.policy_gradient import gumbel, policy_gradient
from qkv.tasks.bandit_players import play, rules
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Int, Tensor

ENTROPY = 0.02  # how much a policy is paid for staying undecided
GAMES = 2**13  # in an epoch
EXAMINED = 10_000
VALIDATED, EXAMINED_IN = 2**31, 2**31 + 1  # the seeds of games to validate and to test on: no run has them
AT_ONCE = 2**16  # pulls that are made together, where nothing is learned
WITHIN = 1.96  # standard errors to each side hold the true mean in 95 of 100 cases


@dataclass(frozen=True)
class GameBatch(TensorBatch):
    """Some games: what each arm pays at each pull, and the luck of the player."""

    pays: Float[Tensor, "batch pulls arms"]
    luck: Float[Tensor, "batch pulls arms"]

    @property
    def tokens(self) -> int:
        return self.pays.shape[0] * self.pays.shape[1]


@dataclass
class BanditTask(ScoredTask):
    """Games that the seed and their number decide. The score is what is won in a game, beside what others win in it."""

    title = "playing bandits"
    command = "view"
    metrics: ClassVar = {
        "reward": Metric("reward"),
        "margin": Metric("margin", higher_is_better=False),  # to both sides of the reward, of 95 %
        **{name: Metric(name) for name in ("random", "thompson", "ucb", "gittins")},
    }
    model = SNAILPolicy
    learns_from = "bandits"
    from_data = ("actions", "length")
    capturable = True

    train: Bandits
    valid: Bandits
    settings: Settings
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.vocabulary = None

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"actions": 2, "length": 1}

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: None) -> dict[str, Any]:
        return {"actions": data.bandits["train"].arms, "length": data.bandits["train"].pulls}

    @classmethod
    def prepare(cls, data: LoadedData, vocabulary: None, model: Any, train: Settings, seed: int) -> "BanditTask":
        return cls(data.bandits["train"], data.bandits["valid"], train, seed, data.notes)

    def describe(self) -> str:
        return f"{self.train.arms} arms, {self.train.pulls} pull(s)"

    def epoch(self, number: int) -> list[list[int]]:
        size = self.settings.batch_tokens
        count = -(-GAMES // size)
        return [[*range(begin * size, (begin + 1) * size)] for begin in range(number * count, (number + 1) * count)]

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> GameBatch:
        return games_of(self.train, self.seed, rows)

    def loss(self, model: SNAILPolicy, batch: GameBatch) -> Float[Tensor, ""]:
        actions, rewards = played(model, batch)
        logits, expected = model(actions[:, :-1], rewards[:, :-1])
        return policy_gradient(logits.float(), expected.float(), actions, rewards, ENTROPY)

    def validate(self, model: SNAILPolicy) -> dict[str, float]:
        return scores(model, self.valid, VALIDATED, self.settings.valid_size)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return ["valid", "test"]

    def examine(self, model: SNAILPolicy, data: LoadedData, split: str) -> Examined:
        seed = VALIDATED if split == "valid" else EXAMINED_IN
        return Examined(EXAMINED, "games", scores(model, data.bandits[split], seed, EXAMINED))


def games_of(bandits: Bandits, seed: int, numbers: Sequence[int]) -> GameBatch:
    """The games of these numbers, as tensors."""
    games = bandits.sample(seed, numbers)
    return GameBatch(torch.from_numpy(games.rewards), torch.from_numpy(games.uniform))


@torch.no_grad()
def played(model: SNAILPolicy, games: GameBatch) -> tuple[Int[Tensor, "batch pulls"], Float[Tensor, "batch pulls"]]:
    """Which arms a model pulls, drawn by its probabilities, and what they pay."""
    batch, pulls, _ = games.pays.shape
    actions = torch.zeros(batch, 0, dtype=torch.long, device=games.pays.device)
    rewards = torch.zeros(batch, 0, device=games.pays.device)
    noise = gumbel(games.luck)
    for pull in range(pulls):
        logits, _ = model(actions, rewards)
        arm = (logits[:, -1].float() + noise[:, pull]).argmax(dim=-1, keepdim=True)
        actions = torch.cat((actions, arm), dim=1)
        rewards = torch.cat((rewards, games.pays[:, pull].gather(1, arm)), dim=1)
    return actions, rewards


@torch.inference_mode()
def scores(model: SNAILPolicy, bandits: Bandits, seed: int, count: int) -> dict[str, float]:
    """The mean reward of a game to the model and to those who play the same games."""
    games = bandits.sample(seed, range(count))
    together = max(1, AT_ONCE // bandits.pulls)
    parts = [
        GameBatch(
            torch.from_numpy(games.rewards[begin : begin + together]),
            torch.from_numpy(games.uniform[begin : begin + together]),
        )
        for begin in range(0, count, together)
    ]
    won = torch.cat([played(model, part.to(model.device))[1].sum(dim=1).double() for part in parts])
    deviation = float(won.std()) if count > 1 else math.nan
    return {
        "reward": float(won.mean()),
        "margin": WITHIN * deviation / math.sqrt(count),
        **{name: float(play(games, rule).mean()) for name, rule in rules(bandits).items()},
    }

"""Attention of a bandit policy: the earlier pulls that each pull attends to."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch

from qkv.attention import watch
from qkv.datasets.corpora.synthetic.bandits import Bandits
from qkv.errors import InputError
from qkv.models.snail import SNAILPolicy
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.pipeline import Pipeline, one_or_many
from qkv.tasks.bandit import TEST_SEED, draw_games, rollout

BEGIN = "[begin]"  # the input before the first pull
WIN, LOSS = "+", "-"


class GameProbe(Pipeline):
    """A bandit policy: `GameProbe("runs/bandit-snail-0", Bandits(5, 10))(3).attention`.

    The rows of each map are the pulls of a game, named by the arms chosen; the columns are the inputs so far: the
    start, then each pull except the last with its reward.
    """

    task_description: ClassVar = "attention in games"
    model_class: ClassVar = SNAILPolicy
    input_types: ClassVar = (int,)
    model: SNAILPolicy

    def __init__(self, model: str | Path | SNAILPolicy, bandits: Bandits, device: str = "auto") -> None:
        super().__init__(model, device=device)
        self.bandits = bandits
        expected = (self.model.config.actions, self.model.config.length)
        if (bandits.arms, bandits.pulls) != expected:
            raise InputError(
                f"games of {bandits.arms} arms and {bandits.pulls} pulls do not match the policy's {expected[0]} arms "
                f"and {expected[1]} pulls"
            )

    @one_or_many
    @torch.inference_mode()
    def __call__(self, numbers: Sequence[int], layer: str | None = None) -> list[Answer]:
        """Play evaluation games, by number, and return their attention, in all layers or in `layer` only."""
        games = draw_games(self.bandits, TEST_SEED, numbers).to(self.model.device)
        actions, rewards = rollout(self.model, games)
        with watch(self.model, layers=layer) as records:
            self.model(actions[:, :-1], rewards[:, :-1])
        layer_weights = {name: record.weights.float().cpu().numpy() for name, record in records.items()}
        answers = []
        for game, number in enumerate(numbers):
            paid = [bool(reward) for reward in rewards[game].tolist()]
            rows = tuple(f"arm{arm + 1}" for arm in actions[game].tolist())
            columns = (BEGIN, *(f"{arm}{WIN if won else LOSS}" for arm, won in zip(rows, paid, strict=True)))[:-1]
            maps = tuple(AttentionMap(name, rows, columns, weights[game]) for name, weights in layer_weights.items())
            answers.append(Answer(f"game {number}", f"{sum(paid)} of {len(paid)} pulls paid ({WIN})", math.nan, maps))
        return answers

"""Observing a player of bandits: a game in, and out which of its earlier pulls each pull attended to."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from qkv.attention import watch
from qkv.attention.layers import select_layers
from qkv.data.bandits import Bandits
from qkv.errors import InputError
from qkv.interop import load_as
from qkv.models.snail import SNAILPolicy
from qkv.runtime.device import pick_device
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.bandit import EXAMINED_IN, games_of, played

BEGIN = "[begin]"  # what there is to read before the first pull
PAID, NOTHING = "+", "-"


class GameObserver:
    """A player: `GameObserver("runs/bandit-snail-0", Bandits(5, 10))(3).maps`.

    The rows of each map are the pulls of a game, by the arms chosen; the columns what could be read before: the
    beginning, then each pull but the last and whether it paid.
    """

    def __init__(self, model: str | Path | SNAILPolicy, bandits: Bandits, device: str = "auto") -> None:
        given = model if isinstance(model, SNAILPolicy) else load_as(SNAILPolicy, model, pick_device(device))
        self.model: SNAILPolicy = given.eval()
        self.bandits = bandits
        known = (self.model.config.actions, self.model.config.length)
        if (bandits.arms, bandits.pulls) != known:
            raise InputError(
                f"games of {bandits.arms} arms and {bandits.pulls} pulls are not for a player of {known[0]} arms and "
                f"{known[1]} pulls"
            )

    def __call__(self, number: int) -> Answer:
        """How the model plays the game of a number, one of those it is evaluated on."""
        return self.observe([number])[0]

    @torch.inference_mode()
    def observe(self, numbers: Sequence[int], layer: str | None = None) -> list[Answer]:
        """How the model plays each game, and what it attends to: in all layers, or in one that is named."""
        if layer is not None:
            select_layers(self.model, layer)
        games = games_of(self.bandits, EXAMINED_IN, numbers).to(self.model.device)
        actions, rewards = played(self.model, games)
        with watch(self.model, layers=layer) as seen:
            self.model(actions[:, :-1], rewards[:, :-1])
        read = {name: record.weights.float().cpu().numpy() for name, record in seen.items()}  # game 1 pull pull
        found = []
        for game, number in enumerate(numbers):
            arms, paid = [arm + 1 for arm in actions[game].tolist()], [bool(one) for one in rewards[game].tolist()]
            rows = tuple(f"arm{arm}" for arm in arms)
            columns = (BEGIN, *(f"{arm}{PAID if won else NOTHING}" for arm, won in zip(rows, paid, strict=True)))[:-1]
            maps = tuple(AttentionMap(name, rows, columns, weights[game]) for name, weights in read.items())
            found.append(Answer(f"game {number}", f"{sum(paid)} of {len(paid)} pulls paid ({PAID})", math.nan, maps))
        return found

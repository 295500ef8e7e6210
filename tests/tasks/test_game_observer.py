"""Watching a player of bandits: the maps are those of the game it plays when it is evaluated."""

import pytest
import torch

from qkv.attention import watch
from qkv.data.bandits import Bandits
from qkv.errors import InputError
from qkv.models.snail import PolicyConfig, SNAILPolicy
from qkv.tasks.bandit import EXAMINED_IN, games_of, played
from qkv.tasks.game_observer import GameObserver

BANDITS = Bandits(3, 6)


@pytest.fixture
def player() -> SNAILPolicy:
    torch.manual_seed(0)
    model = SNAILPolicy(PolicyConfig(actions=3, length=6, keys=(8, 8), values=(4, 4), filters=4)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return model


def test_the_game_is_the_one_of_the_test_set_and_the_weights_are_the_models(player: SNAILPolicy):
    answer = GameObserver(player, BANDITS)(4)
    with torch.no_grad(), watch(player) as seen:
        actions, rewards = played(player, games_of(BANDITS, EXAMINED_IN, [4]))
    assert answer.source == "game 4"
    assert answer.text == f"{int(rewards.sum())} of 6 pulls paid (+)"
    arms = [f"arm{arm + 1}" for arm in actions[0].tolist()]
    assert answer.maps[0].rows == tuple(arms)
    told = [f"{arm}{'+' if paid else '-'}" for arm, paid in zip(arms, rewards[0], strict=True)]
    assert answer.maps[0].columns == ("[begin]", *told[:-1])
    assert [one.layer for one in answer.maps] == list(seen)
    for one in answer.maps:
        last_pull = seen[one.layer].passes[-1]  # which reads all before it
        torch.testing.assert_close(torch.from_numpy(one.weights), last_pull[0])


def test_some_layers_and_several_games(player: SNAILPolicy):
    observer = GameObserver(player, BANDITS)
    layer = observer(0).maps[1].layer
    first, second = observer.observe([2, 0], layer)
    assert [one.layer for one in first.maps] == [layer]
    assert (first.source, second.source) == ("game 2", "game 0")
    with pytest.raises(InputError, match="nowhere"):
        observer.observe([0], "nowhere")


def test_a_player_of_other_games_is_refused(player: SNAILPolicy):
    with pytest.raises(InputError, match="games of 4 arms and 6 pulls are not for a player of 3 arms and 6 pulls"):
        GameObserver(player, Bandits(4, 6))

"""Attention probe of a bandit policy: the maps are those of the evaluation game."""

import pytest
import torch

from qkv.attention import watch
from qkv.datasets.corpora.synthetic.bandits import Bandits
from qkv.errors import InputError
from qkv.interpret.game_probe import GameProbe
from qkv.models.snail import SNAILPolicy, SNAILPolicyConfig
from qkv.tasks.bandit import TEST_SEED, draw_games, rollout

BANDITS = Bandits(3, 6)


@pytest.fixture
def player() -> SNAILPolicy:
    torch.manual_seed(0)
    model = SNAILPolicy(SNAILPolicyConfig(actions=3, length=6, key_dims=(8, 8), value_dims=(4, 4), filters=4)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return model


def test_game_and_weights_are_those_of_evaluation(player: SNAILPolicy):
    answer = GameProbe(player, BANDITS)(4)
    with torch.no_grad(), watch(player) as records:
        actions, rewards = rollout(player, draw_games(BANDITS, TEST_SEED, [4]))
    assert answer.source == "game 4"
    assert answer.text == f"{int(rewards.sum())} of 6 pulls paid (+)"
    arms = [f"arm{arm + 1}" for arm in actions[0].tolist()]
    assert answer.attention[0].rows == tuple(arms)
    columns = [f"{arm}{'+' if paid else '-'}" for arm, paid in zip(arms, rewards[0], strict=True)]
    assert answer.attention[0].columns == ("[begin]", *columns[:-1])
    assert [attention_map.layer for attention_map in answer.attention] == list(records)
    for attention_map in answer.attention:
        last_pull = records[attention_map.layer].passes[-1]  # attends to all earlier pulls
        torch.testing.assert_close(torch.from_numpy(attention_map.weights), last_pull[0])


def test_some_layers_and_several_games(player: SNAILPolicy):
    probe = GameProbe(player, BANDITS)
    layer = probe(0).attention[1].layer
    first, second = probe([2, 0], layer)
    assert [attention_map.layer for attention_map in first.attention] == [layer]
    assert (first.source, second.source) == ("game 2", "game 0")
    with pytest.raises(InputError, match="nowhere"):
        probe([0], "nowhere")


def test_games_of_another_shape_are_an_error(player: SNAILPolicy):
    with pytest.raises(InputError, match="4 arms and 6 pulls"):
        GameProbe(player, Bandits(4, 6))

"""Bandits: the games, those who play them, and that a model learns to."""

import math
from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.bandits import Bandits
from qkv.data.registry import DataConfig, LoadedData, load_data
from qkv.errors import InputError
from qkv.models.snail import PolicyConfig, SNAILPolicy
from qkv.objectives.policy_gradient import gumbel, policy_gradient
from qkv.tasks import bandit
from qkv.tasks.bandit import EXAMINED_IN, VALIDATED, BanditTask, GameBatch, games_of, played, scores
from qkv.tasks.bandit_players import gittins_index, play, rules
from qkv.training.recipe import TrainConfig

BANDITS = Bandits(3, 4)
GOLDEN = -0.0810  # the loss after 20 steps; near 0, for it is no cost: what was won is compared with what was expected


def prepared(pulls: int = 4) -> tuple[BanditTask, SNAILPolicy]:
    data = load_data(DataConfig(name="bandits", arms=3, pulls=pulls))
    torch.manual_seed(0)
    model = SNAILPolicy(PolicyConfig(**BanditTask.sizes(data, None), keys=(8, 8), values=(8, 8), filters=8))
    return BanditTask.prepare(data, None, None, TrainConfig(batch_tokens=64), 0), model


def test_arms_pay_as_often_as_they_should_and_by_seed_and_number_alone():
    games = Bandits(2, 1000).sample(0, range(20))
    assert games.rewards.mean(axis=1) == pytest.approx(games.win_probs, abs=0.06)
    assert BANDITS.sample(0, [7]).rewards.tolist() == BANDITS.sample(0, range(9)).rewards[7:8].tolist()
    assert BANDITS.sample(1, range(99)).win_probs.mean() == pytest.approx(0.5, abs=0.1)


def test_games_that_cannot_be_played_are_refused():
    for arms, pulls in ((1, 5), (2, 0), (2, 10**6)):
        with pytest.raises(InputError, match="between"):
            Bandits(arms, pulls)


def best_possible(pulls: int, arms: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))) -> float:
    """What the best of all players expects to win, by trying everything."""
    if pulls == 0:
        return 0.0
    found = []
    for place, (paid, failed) in enumerate(arms):
        p = (paid + 1) / (paid + failed + 2)
        others = arms[:place], arms[place + 1 :]
        won, lost = ((*others[0], arm, *others[1]) for arm in ((paid + 1, failed), (paid, failed + 1)))
        found.append(p * (1 + best_possible(pulls - 1, won)) + (1 - p) * best_possible(pulls - 1, lost))
    return max(found)


def test_who_plays_by_the_index_wins_as_much_as_anyone_can_and_the_others_less():
    two = Bandits(2, 5)
    games = two.sample(0, range(40_000))
    won = {name: float(play(games, rule).mean()) for name, rule in rules(two).items()}
    assert won["random"] == pytest.approx(2.5, abs=0.03)
    assert won["gittins"] == pytest.approx(best_possible(5), abs=0.03)
    assert won["random"] + 0.1 < won["ucb"] < won["gittins"]
    assert won["random"] + 0.1 < won["thompson"] < won["gittins"]


def test_the_index_is_the_mean_at_the_last_pull_and_more_before_it():
    index = gittins_index(6)
    for tried, paid in product(range(6), repeat=2):
        if paid <= tried:
            assert index[1, tried, paid] == pytest.approx((paid + 1) / (tried + 2), abs=1e-3)
    assert index[2, 0, 0] == pytest.approx(5 / 9, abs=1e-3)  # 2 l = 1/2 (1 + 2/3) + l/2
    assert (np.diff(index[1:, 0, 0]) > 0).all()


def test_a_model_sees_only_what_it_pulled_and_is_paid_for_it():
    _, model = prepared()
    torch.nn.init.normal_(model.output.weight)
    games = games_of(BANDITS, 0, range(50))
    actions, rewards = played(model, games)
    assert torch.equal(rewards, games.pays.gather(2, actions[..., None])[..., 0])
    logits, _ = model(actions[:, :-1], rewards[:, :-1])
    torch.testing.assert_close((logits + gumbel(games.luck)).argmax(dim=-1), actions)


def test_noise_makes_draws_by_the_probabilities_of_the_logits():
    luck = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    drawn = (logits + gumbel(luck)).argmax(dim=-1).bincount(minlength=3) / 20_000
    torch.testing.assert_close(drawn, logits.exp(), atol=0.015, rtol=0)
    assert gumbel(torch.tensor([0.0, 1.0])).isfinite().all()


def test_the_policy_gradient_is_that_of_its_equation():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    actions, rewards = torch.randint(4, (2, 3)), torch.rand(2, 3, dtype=torch.float64)
    to_come = [[sum(row[t:]) / 3 for t in range(3)] for row in rewards.tolist()]
    left = [[to_come[b][t] - expected[b, t].item() for t in range(3)] for b in range(2)]
    mean = sum(map(sum, left)) / 6
    deviation = math.sqrt(sum((one - mean) ** 2 for row in left for one in row) / 6)
    total = torch.zeros((), dtype=torch.float64)
    for b, t in product(range(2), range(3)):
        p = logits[b, t].softmax(0)
        total = total - left[b][t] / (deviation + 1e-6) * p[actions[b, t]].log()
        total = total + (expected[b, t] - to_come[b][t]) ** 2 + 0.1 * (p * p.log()).sum()
    found = policy_gradient(logits, expected, actions, rewards, 0.1)
    torch.testing.assert_close(found, total / 6)
    for ours, theirs in zip(
        torch.autograd.grad(found, (logits, expected)), torch.autograd.grad(total / 6, (logits, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def taught(task: BanditTask, model: SNAILPolicy, batches: Iterable[GameBatch]) -> float:
    """The loss of the last of these batches, after learning from those before it."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for batch in batches:
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_model_learns_to_win_more_than_by_chance():
    two = Bandits(2, 6)
    torch.manual_seed(0)
    model = SNAILPolicy(PolicyConfig(2, 6, keys=(8, 8), values=(8, 8), filters=8))
    task = BanditTask(two, two, TrainConfig(batch_tokens=256), 0, ())
    taught(task, model, [task.batch(rows) for rows in [*task.epoch(0), *task.epoch(1)][:50]])
    found = scores(model.eval(), two, VALIDATED, 4000)
    assert set(found) == set(BanditTask.metrics)
    assert found["reward"] > found["random"] + 0.2  # 0.35 more were seen
    assert 0 < found["margin"] < 0.1


def test_the_loss_after_twenty_steps_is_what_it_was():
    task, model = prepared()
    batches = [task.batch(range(8 * step, 8 * step + 8)) for step in range(20)]
    assert taught(task, model, batches) == pytest.approx(GOLDEN, abs=2e-3)


def most(pays: Tensor) -> float:
    """What can be won in some games by who knows them all, but not which of them is played: by trying everything."""
    if not pays.numel():
        return 0.0
    return max(
        float(now.sum()) + sum(most(pays[now == paid, 1:]) for paid in (0.0, 1.0))  # what was paid tells games apart
        for now in pays[:, 0].unbind(dim=1)
    )


def test_eight_games_are_learned_by_heart():
    task, model = prepared(pulls=3)
    eight, chance = games_of(task.train, 0, range(8)).pays, torch.Generator().manual_seed(0)
    often = eight.repeat(16, 1, 1)
    taught(task, model, [GameBatch(often, torch.rand(often.shape, generator=chance)) for _ in range(100)])
    _, rewards = played(model, GameBatch(eight, torch.full_like(eight, 0.5)))  # no luck: the likeliest arm
    assert float(rewards.sum()) == most(eight)
    assert most(eight) > eight.sum(dim=(0, 1)).max()  # than who always pulls the same arm


def test_games_are_scored_in_parts_and_those_of_a_test_are_none_that_chose_the_model(monkeypatch):
    task, model = prepared()
    whole = scores(model, BANDITS, VALIDATED, 50)
    assert task.examine(model, LoadedData({}, bandits={"valid": BANDITS, "test": BANDITS}), "test").scores != whole
    monkeypatch.setattr(bandit, "AT_ONCE", 28)  # seven games
    assert scores(model, BANDITS, VALIDATED, 50) == pytest.approx(whole)
    assert not np.array_equal(
        BANDITS.sample(VALIDATED, range(50)).rewards, BANDITS.sample(EXAMINED_IN, range(50)).rewards
    )


def test_a_task_says_what_it_plays_and_on_what_it_is_scored():
    task, model = prepared()
    assert task.describe() == "3 arms, 4 pull(s)"
    assert BanditTask.splits(LoadedData({}, bandits={"train": BANDITS})) == ["valid", "test"]
    assert task.examine(model, load_data(DataConfig(name="bandits", arms=3, pulls=4)), "test").size == 10_000

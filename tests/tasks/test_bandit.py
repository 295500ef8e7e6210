"""Bandit task: the games, the baseline policies, and training."""

import math
from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.datasets.corpora.synthetic.bandits import Bandits
from qkv.datasets.dataset import BanditDataset
from qkv.errors import InputError
from qkv.models.snail import SNAILPolicy, SNAILPolicyConfig
from qkv.nn.losses import gumbel, policy_gradient
from qkv.tasks import bandit
from qkv.tasks.bandit import TEST_SEED, VALID_SEED, BanditTask, GameBatch, draw_games, rollout, scores
from qkv.tasks.bandit_policies import baselines, gittins_index, play
from tests.datasets.build import dataset, load
from tests.tasks.settings import prepare

BANDITS = Bandits(3, 4)
GOLDEN = -0.0810  # loss after 20 steps; near 0, as rewards are compared with their expectation


def prepared(pulls: int = 4) -> tuple[BanditTask, SNAILPolicy]:
    data = load("bandits", arms=3, pulls=pulls)
    torch.manual_seed(0)
    model = SNAILPolicy(
        SNAILPolicyConfig(**BanditTask.sizes(data, None), key_dims=(8, 8), value_dims=(8, 8), filters=8)
    )
    return prepare(BanditTask, data, None, None, batch_size=64), model


def test_rewards_follow_the_probabilities_and_are_reproducible():
    games = Bandits(2, 1000).sample(0, range(20))
    assert games.rewards.mean(axis=1) == pytest.approx(games.win_probs, abs=0.06)
    assert BANDITS.sample(0, [7]).rewards.tolist() == BANDITS.sample(0, range(9)).rewards[7:8].tolist()
    assert BANDITS.sample(1, range(99)).win_probs.mean() == pytest.approx(0.5, abs=0.1)


def test_invalid_games_are_errors():
    for arms, pulls in ((1, 5), (2, 0), (2, 10**6)):
        with pytest.raises(InputError, match="between"):
            dataset("bandits", arms=arms, pulls=pulls)


def best_possible(pulls: int, arms: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))) -> float:
    """Expected reward of the optimal policy, by exhaustive search."""
    if pulls == 0:
        return 0.0
    values = []
    for index, (paid, failed) in enumerate(arms):
        p = (paid + 1) / (paid + failed + 2)
        others = arms[:index], arms[index + 1 :]
        won, lost = ((*others[0], arm, *others[1]) for arm in ((paid + 1, failed), (paid, failed + 1)))
        values.append(p * (1 + best_possible(pulls - 1, won)) + (1 - p) * best_possible(pulls - 1, lost))
    return max(values)


def test_the_gittins_index_is_optimal_and_beats_the_other_baselines():
    two = Bandits(2, 5)
    games = two.sample(0, range(40_000))
    rewards = {name: float(play(games, policy).mean()) for name, policy in baselines(two).items()}
    assert rewards["random"] == pytest.approx(2.5, abs=0.03)
    assert rewards["gittins"] == pytest.approx(best_possible(5), abs=0.03)
    assert rewards["random"] + 0.1 < rewards["ucb"] < rewards["gittins"]
    assert rewards["random"] + 0.1 < rewards["thompson"] < rewards["gittins"]


def test_the_index_is_the_mean_at_the_last_pull_and_larger_before():
    index = gittins_index(6)
    for tried, paid in product(range(6), repeat=2):
        if paid <= tried:
            assert index[1, tried, paid] == pytest.approx((paid + 1) / (tried + 2), abs=1e-3)
    assert index[2, 0, 0] == pytest.approx(5 / 9, abs=1e-3)  # 2 l = 1/2 (1 + 2/3) + l/2
    assert (np.diff(index[1:, 0, 0]) > 0).all()


def test_rollout_returns_the_rewards_of_the_sampled_actions():
    _, model = prepared()
    torch.nn.init.normal_(model.readout.weight)
    games = draw_games(BANDITS, 0, range(50))
    actions, rewards = rollout(model, games)
    assert torch.equal(rewards, games.rewards.gather(2, actions[..., None])[..., 0])
    logits, _ = model(actions[:, :-1], rewards[:, :-1])
    torch.testing.assert_close((logits + gumbel(games.uniform)).argmax(dim=-1), actions)


def test_gumbel_noise_samples_from_the_softmax():
    uniform = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    frequencies = (logits + gumbel(uniform)).argmax(dim=-1).bincount(minlength=3) / 20_000
    torch.testing.assert_close(frequencies, logits.exp(), atol=0.015, rtol=0)
    assert gumbel(torch.tensor([0.0, 1.0])).isfinite().all()


def test_policy_gradient_equals_its_equation():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    actions, rewards = torch.randint(4, (2, 3)), torch.rand(2, 3, dtype=torch.float64)
    returns = [[sum(row[t:]) / 3 for t in range(3)] for row in rewards.tolist()]
    advantages = [[returns[b][t] - expected[b, t].item() for t in range(3)] for b in range(2)]
    mean = sum(map(sum, advantages)) / 6
    deviation = math.sqrt(sum((advantage - mean) ** 2 for row in advantages for advantage in row) / 6)
    total = torch.zeros((), dtype=torch.float64)
    for b, t in product(range(2), range(3)):
        p = logits[b, t].softmax(0)
        total = total - advantages[b][t] / (deviation + 1e-6) * p[actions[b, t]].log()
        total = total + (expected[b, t] - returns[b][t]) ** 2 + 0.1 * (p * p.log()).sum()
    loss = policy_gradient(logits, expected, actions, rewards, 0.1)
    torch.testing.assert_close(loss, total / 6)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (logits, expected)), torch.autograd.grad(total / 6, (logits, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def train(task: BanditTask, model: SNAILPolicy, batches: Iterable[GameBatch]) -> float:
    """Train on the batches and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for batch in batches:
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_trained_model_beats_the_random_policy():
    two = Bandits(2, 6)
    torch.manual_seed(0)
    model = SNAILPolicy(SNAILPolicyConfig(actions=2, length=6, key_dims=(8, 8), value_dims=(8, 8), filters=8))
    task = prepare(BanditTask, BanditDataset({"train": two, "valid": two}), None, None, batch_size=256)
    train(task, model, [task.batch(rows) for rows in [*task.epoch(0), *task.epoch(1)][:50]])
    result = scores(model.eval(), two, VALID_SEED, 4000)
    assert set(result) == set(BanditTask.metrics)
    assert result["reward"] > result["random"] + 0.2  # measured: 0.35
    assert 0 < result["margin"] < 0.1


def test_golden_loss_after_20_steps():
    task, model = prepared()
    batches = [task.batch(range(8 * step, 8 * step + 8)) for step in range(20)]
    assert train(task, model, batches) == pytest.approx(GOLDEN, abs=2e-3)


def max_reward(pays: Tensor) -> float:
    """Maximum total reward of a policy that knows the games but not which one it plays, by exhaustive search."""
    if not pays.numel():
        return 0.0
    return max(
        float(now.sum()) + sum(max_reward(pays[now == paid, 1:]) for paid in (0.0, 1.0))
        for now in pays[:, 0].unbind(dim=1)
    )


def test_a_model_memorises_eight_games():
    task, model = prepared(pulls=3)
    games, generator = draw_games(task.train, 0, range(8)).rewards, torch.Generator().manual_seed(0)
    repeated = games.repeat(16, 1, 1)
    train(task, model, [GameBatch(repeated, torch.rand(repeated.shape, generator=generator)) for _ in range(100)])
    _, rewards = rollout(model, GameBatch(games, torch.full_like(games, 0.5)))  # no noise: the most likely arm
    assert float(rewards.sum()) == max_reward(games)
    assert max_reward(games) > games.sum(dim=(0, 1)).max()  # better than any single arm


def test_scores_in_chunks_are_equal_and_test_games_differ_from_validation(monkeypatch):
    task, model = prepared()
    whole = scores(model, BANDITS, VALID_SEED, 50)
    assert task.evaluate(model, BanditDataset({"valid": BANDITS, "test": BANDITS}), "test").scores != whole
    monkeypatch.setattr(bandit, "EVAL_PULLS", 28)  # seven games
    assert scores(model, BANDITS, VALID_SEED, 50) == pytest.approx(whole)
    assert not np.array_equal(
        BANDITS.sample(VALID_SEED, range(50)).rewards, BANDITS.sample(TEST_SEED, range(50)).rewards
    )


def test_description_and_splits():
    task, model = prepared()
    assert task.describe() == "3 arms, 4 pull(s)"
    data = load("bandits", arms=3, pulls=4)
    assert BanditTask.splits(data) == ["valid", "test"]
    assert task.evaluate(model, data, "test").size == 10_000

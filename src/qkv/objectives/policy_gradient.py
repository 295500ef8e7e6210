"""Learning to act from what acting brought (Williams 1992; Mnih et al. 2016 for the three parts of the loss)."""

import torch

from qkv.types import Float, Int, Tensor

EPSILON = 1e-6


def policy_gradient(
    logits: Float[Tensor, "batch length actions"],
    expected: Float[Tensor, "batch length"],
    actions: Int[Tensor, "batch length"],
    rewards: Float[Tensor, "batch length"],
    entropy: float = 0.0,
) -> Float[Tensor, ""]:
    """L = - E[A_t log p(a_t)] + E[(v_t - R_t / n)^2] - entropy E[H(p)],   R_t = r_t + ... + r_n,   A_t = R_t - n v_t.

    What an action is given credit for is the reward from it to the end (n actions), less what was `expected` (v, a
    share of n) before it. The advantage A is divided by its deviation over the batch, so that its scale is no matter.
    """
    length = rewards.shape[1]
    to_come = rewards.flip(1).cumsum(dim=1).flip(1) / length
    advantage = (to_come - expected).detach()
    advantage = advantage / (advantage.std(correction=0) + EPSILON)
    log_p = logits.log_softmax(dim=-1)
    taken = log_p.gather(-1, actions[..., None])[..., 0]
    surprise = -(log_p.exp() * log_p).sum(dim=-1)
    return (-advantage * taken + (expected - to_come).square() - entropy * surprise).mean()


def gumbel(luck: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Noise made of even luck from 0 to 1: of logits with it added, the largest is a draw from their softmax."""
    tiny = torch.finfo(luck.dtype).tiny
    return -(-luck.clamp(min=tiny).log()).clamp(min=tiny).log()

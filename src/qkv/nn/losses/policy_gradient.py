"""Policy gradient loss (Williams 1992) with value and entropy terms (Mnih et al. 2016)."""

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

    R_t is the return from step t to the end (n actions), and `expected` is the value v_t, as a fraction of n. The
    advantage A is divided by its standard deviation over the batch.
    """
    length = rewards.shape[1]
    returns = rewards.flip(1).cumsum(dim=1).flip(1) / length
    advantage = (returns - expected).detach()
    advantage = advantage / (advantage.std(correction=0) + EPSILON)
    log_p = logits.log_softmax(dim=-1)
    action_log_p = log_p.gather(-1, actions[..., None])[..., 0]
    policy_entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return (-advantage * action_log_p + (expected - returns).square() - entropy * policy_entropy).mean()


def gumbel(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Transform uniform noise into Gumbel noise: argmax(logits + gumbel(u)) is a sample from softmax(logits)."""
    tiny = torch.finfo(uniform.dtype).tiny
    return -(-uniform.clamp(min=tiny).log()).clamp(min=tiny).log()

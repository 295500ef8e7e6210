"""Training losses: cross-entropy, R-Drop, REINFORCE for attention, doubly stochastic attention, policy gradient."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Hard
from qkv.attention.precision import at_least_float32
from qkv.nn import fast
from qkv.types import Bool, Float, Int, Tensor

EPSILON = 1e-6


def token_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"], targets: Int[Tensor, "batch length"], ignore: int
) -> Float[Tensor, ""]:
    """Return -sum log p(target), in nats, over all targets except `ignore`."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=ignore, reduction="sum")


def mean_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"],
    targets: Int[Tensor, "batch length"],
    ignore: int,
    label_smoothing: float = 0.0,
    *,
    consume: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean of -(1 - e) log p(target) - e / V sum_v log p(v), in nats, over all targets except `ignore`.

    With `consume`, the memory of the logits may be reused for their gradient.
    """
    return fast.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore, label_smoothing, consume=consume)


def linear_cross_entropy(
    hidden: Float[Tensor, "batch length dim"],
    readout: nn.Linear,
    targets: Int[Tensor, "batch length"],
    ignore: int,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """`mean_cross_entropy` of the logits of an output layer, without storing them on a GPU."""
    return fast.linear_cross_entropy(
        hidden.flatten(0, 1), readout.weight, readout.bias, targets.flatten(), ignore, label_smoothing
    )


def r_drop_loss(
    logits: Float[Tensor, "twice_batch length vocabulary"], targets: Int[Tensor, "twice_batch length"], ignore: int
) -> Float[Tensor, ""]:
    """Return the mean of (KL(p || q) + KL(q || p)) / 4 over the targets: R-Drop (Wu et al. 2021).

    The second half of the batch repeats the first: p and q are the outputs for the same input with different dropout.
    Added to the mean cross-entropy of both halves, it is half of the paper's loss with alpha = 1.
    """
    log_p, log_q = at_least_float32(logits).log_softmax(dim=-1).chunk(2)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)  # KL(p || q) + KL(q || p)
    counted = (targets != ignore).chunk(2)[0]
    return divergence.masked_fill(~counted, 0.0).sum() / (4 * counted.sum().clamp(min=1))


def alignment_loss(
    model: nn.Module,
    logits: Float[Tensor, "batch target vocabulary"],
    targets: Int[Tensor, "batch target"],
    ignore: int,
) -> Float[Tensor, ""] | None:
    """Return the REINFORCE loss of hard attention layers, which sample what they attend to.

    A sample at step t affects the outputs from t on, so its reward is

        R_t = sum_{u >= t} discount^{u-t} log p(y_u)

    (Williams 1992; Xu et al. 2015), minus a baseline per remaining step. The loss of the samples since the last call is
    averaged over all targets except `ignore`. None if the model has no such layer or is not being trained.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Hard) and layer.estimator == "reinforce"]
    if not layers or not model.training or not torch.is_grad_enabled():
        return None
    counted = targets != ignore
    flat_logits = at_least_float32(logits.detach()).flatten(0, 1)
    log_p = -F.cross_entropy(flat_logits, targets.flatten(), ignore_index=ignore, reduction="none").view(targets.shape)
    scale = targets.shape[0] / counted.sum().clamp(min=1)  # `Hard.loss` is a mean over rows, and a sum over steps
    losses = []
    for layer in layers:
        rewards, steps = (_discounted_sum(values, layer.discount) for values in (log_p, counted.to(log_p.dtype)))
        losses.append(layer.loss(rewards, counted, steps).loss * scale)
    return torch.stack(losses).sum()


def _discounted_sum(values: Float[Tensor, "batch target"], discount: float) -> Float[Tensor, "batch target"]:
    """sum_{u >= t} discount^{u-t} x_u, for each t."""
    time = torch.arange(values.shape[1], device=values.device)
    later = (time[:, None] - time).clamp(min=0).to(values.dtype)  # u - t
    return (values[:, :, None] * (discount**later).tril()).sum(dim=1)  # not a matmul, which autocast would round


def doubly_stochastic_loss(
    weights: Float[Tensor, "batch target positions"], counted: Bool[Tensor, "batch target"]
) -> Float[Tensor, ""]:
    """Return sum_i (1 - sum_t a_ti)^2 over the counted steps t, summed over rows, divided by the number of steps.

    The weights of a step sum to 1 over positions; this loss encourages the weights of a position to sum to 1 over
    steps: doubly stochastic attention (Xu et al. 2015). It is normalized like the cross-entropy.
    """
    totals = at_least_float32(weights).masked_fill(~counted[..., None], 0.0).sum(dim=1)
    losses = (1.0 - totals).square().sum(dim=-1)
    return (losses * counted.any(dim=1)).sum() / counted.sum().clamp(min=1)


def policy_gradient(
    logits: Float[Tensor, "batch length actions"],
    expected: Float[Tensor, "batch length"],
    actions: Int[Tensor, "batch length"],
    rewards: Float[Tensor, "batch length"],
    entropy: float = 0.0,
) -> Float[Tensor, ""]:
    """L = - E[A_t log p(a_t)] + E[(v_t - R_t / n)^2] - entropy E[H(p)],   R_t = r_t + ... + r_n,   A_t = R_t - n v_t.

    R_t is the return from step t to the end (n actions), and `expected` is the value v_t, as a fraction of n (Williams
    1992; Mnih et al. 2016). The advantage A is divided by its standard deviation over the batch.
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

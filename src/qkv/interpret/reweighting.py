"""Other attention weights for the same output (Jain and Wallace 2019).

If attention explains an output, other weights should change it. Two tests replace the weights of the last attention
layer, in all heads, for the query of the output:

    permuted        the median change of the output over random permutations of the weights
    adversarial     max_a' JSD(a, a')   with   TVD(p(a), p(a')) <= epsilon,   by gradient ascent from several starts

where p(a) is the distribution of the output, TVD(p, q) = 1/2 sum |p_i - q_i| and JSD the Jensen-Shannon divergence with
natural logarithms, at most ln 2 = 0.69. A large adversarial JSD means that very different weights give the same output.
"""

from dataclasses import dataclass

import torch

from qkv.attention import replace_weights
from qkv.interpret.explainable import Explainable
from qkv.types import Bool, Float, Tensor

EPSILON = 0.01  # as in the paper, for classifiers
PERMUTATIONS = 50
STARTS, STEPS, LEARNING_RATE, PENALTY = 4, 100, 0.3, 500.0
TINY = 1e-12


@dataclass(frozen=True)
class Reweighting:
    """Result of the two tests for one output."""

    permuted_tvd: float  # median change of the output over the permutations
    adversarial_jsd: float  # between the weights and the most different ones with the same output; 0 if none was found
    adversarial_tvd: float  # change of the output with those weights
    max_weight: float  # largest attention weight, averaged over heads


def reweight(prediction: Explainable, output: int = 0, *, epsilon: float = EPSILON, seed: int = 0) -> Reweighting:
    """Test the attention weights of an output."""
    test, generator = _Test(prediction, output), torch.Generator().manual_seed(seed)
    permuted_tvd = test.permuted_change(generator)
    jsd, tvd = test.search(epsilon, generator)
    return Reweighting(permuted_tvd, jsd, tvd, float(test.row.mean(dim=1).max(dim=-1).values.mean()))


def permuted_change(prediction: Explainable, output: int = 0, *, seed: int = 0) -> float:
    """Return the median change of an output over random permutations of its attention weights."""
    return _Test(prediction, output).permuted_change(torch.Generator().manual_seed(seed))


class _Test:
    """The output as a function of the weights of one query."""

    def __init__(self, prediction: Explainable, output: int) -> None:
        self.prediction, self.output = prediction, output
        self.layer, self.weights, self.query = prediction.reweighted(output)
        self.row = self.weights[:, :, self.query]  # [rows, heads, key]
        with torch.no_grad():
            self.p = self._distribution(self.row[None])[0]

    def _distribution(self, rows: Float[Tensor, "variants rows heads key"]) -> Float[Tensor, "variants classes"]:
        variants = len(rows)
        weights = self.weights.repeat(variants, 1, 1, 1)
        weights = torch.cat(
            (weights[:, :, : self.query], rows.flatten(0, 1)[:, :, None], weights[:, :, self.query + 1 :]), dim=2
        )
        with replace_weights(self.prediction.model, self.layer, weights):
            logits = self.prediction.forward(self.prediction.everything(variants))
        return logits[:, self.output].float().softmax(dim=-1)

    def changes(self, rows: Float[Tensor, "variants rows heads key"]) -> Float[Tensor, "variants"]:
        """Return the total variation distance of the output with other weights."""
        return 0.5 * (self._distribution(rows) - self.p).abs().sum(dim=-1)

    @torch.no_grad()
    def permuted_change(self, generator: torch.Generator) -> float:
        """Return the median change of the output over permutations of the weights."""
        permuted = torch.stack([permute(self.row, generator) for _ in range(PERMUTATIONS)])
        return float(self.changes(permuted).median())

    def search(self, epsilon: float, generator: torch.Generator) -> tuple[float, float]:
        """Return the greatest JSD of weights with a change of at most epsilon, and that change."""
        row = self.row
        support = row > 0  # masked keys keep the weight 0
        start = torch.randn(STARTS, *row.shape, generator=generator).to(row)
        scores = (row.clamp(min=TINY).log() + start).requires_grad_()
        optimizer = torch.optim.Adam([scores], lr=LEARNING_RATE)
        best = (0.0, 0.0)
        for _ in range(STEPS):
            with torch.enable_grad():
                other = scores.masked_fill(~support, -torch.inf).softmax(dim=-1).nan_to_num()
                jsd, tvd = divergence(row, other, support), self.changes(other)
                loss = (PENALTY * (tvd - epsilon).clamp(min=0) - jsd).sum()
            (scores.grad,) = torch.autograd.grad(loss, scores)
            found = zip(jsd.tolist(), tvd.tolist(), strict=True)
            accepted = [(distance, change) for distance, change in found if change <= epsilon]
            best = max([best, *accepted])
            optimizer.step()
        return best


def permute(row: Float[Tensor, "rows heads key"], generator: torch.Generator) -> Float[Tensor, "rows heads key"]:
    """Permute the weights of unmasked keys, with the same permutation in all heads."""
    permuted = row.clone()
    for number, weights in enumerate(row):
        keys = (weights > 0).any(dim=0).nonzero()[:, 0]
        order = torch.randperm(len(keys), generator=generator).to(keys.device)
        permuted[number][:, keys] = weights[:, keys[order]]
    return permuted


def divergence(
    a: Float[Tensor, "rows heads key"],
    b: Float[Tensor, "variants rows heads key"],
    support: Bool[Tensor, "rows heads key"],
) -> Float[Tensor, "variants"]:
    """Return the Jensen-Shannon divergence of weights, averaged over heads and over the rows with several keys."""
    mean = 0.5 * (a + b)
    terms = [x * (x.clamp(min=TINY) / mean.clamp(min=TINY)).log() for x in (a.expand_as(b), b)]
    per_row = 0.5 * (terms[0] + terms[1]).sum(dim=-1)  # [variants, rows, heads]
    several = support.sum(dim=-1) > 1
    return (per_row * several).sum(dim=(1, 2)) / several.sum().clamp(min=1)

"""Statistics of attention heads on parsed sentences: distance, entropy, rare words and dependency relations."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch

from qkv.attention import watch
from qkv.datasets.examples.tagged import Tagged
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.inputs.text_inputs import ExampleEncoder
from qkv.types import Bool, Float, Int, Tensor


class HeadStatistics(NamedTuple):
    """Statistics of all heads on one sentence, and the word that each head gives the largest weight for each word."""

    distance: Float[Tensor, "heads"]  # mean distance of attended words, in words
    previous: Float[Tensor, "heads"]  # mean weight of the word before
    entropy: Float[Tensor, "heads"]  # mean entropy, divided by that of uniform weights
    rare: Float[Tensor, "heads"]  # mean weight of rare words, minus their share of the words
    most_attended: Int[Tensor, "heads words"]  # of the other words


@torch.inference_mode()
def head_weights(
    model: TextEncoder, encoder: ExampleEncoder, words: Sequence[str]
) -> Float[Tensor, "heads words words"]:
    """Return the attention weights between the words of a sentence, of the heads of all layers."""
    pieces = encoder.encode_words(words)
    ids = encoder.add_special_tokens([token for word in pieces for token in word])
    with watch(model) as records:
        model(torch.tensor([ids], device=model.device))
    weights = torch.cat([record.weights[0] for record in records.values()])
    return by_words(weights.float().cpu(), [len(word) for word in pieces], encoder.first_position)


def by_words(
    weights: Float[Tensor, "heads tokens tokens"], sizes: Sequence[int], first: int
) -> Float[Tensor, "heads words words"]:
    """Return weights between words: summed over the tokens of a key, averaged over those of a query, normalized.

    Word i has `sizes[i]` tokens; those before token `first` and after the last word are left out.
    """
    word = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    member = torch.nn.functional.one_hot(word, len(sizes)).to(weights)  # tokens x words
    inner = weights[:, first : first + len(word), first : first + len(word)]
    summed = (member / member.sum(dim=0)).T @ inner @ member
    return summed / summed.sum(dim=-1, keepdim=True)


def statistics_of(weights: Float[Tensor, "heads words words"], rare: Bool[Tensor, "words"]) -> HeadStatistics:
    """Return the statistics of all heads on a sentence."""
    length = weights.shape[-1]
    index = torch.arange(length)
    distances = (index[:, None] - index).abs().to(weights)
    entropy = torch.special.entr(weights).sum(dim=-1) / torch.tensor(float(length)).log()
    others = weights.masked_fill(torch.eye(length, dtype=torch.bool), -1.0)
    return HeadStatistics(
        distance=(weights * distances).sum(dim=-1).mean(dim=-1),
        previous=weights.diagonal(offset=-1, dim1=1, dim2=2).mean(dim=-1),
        entropy=entropy.mean(dim=-1),
        rare=weights[..., rare].sum(dim=-1).mean(dim=-1) - rare.to(weights).mean(),
        most_attended=others.argmax(dim=-1),
    )


def variance_ratio(values: Float[Tensor, "sentences heads"]) -> float:
    """Return the variance of the heads' means, divided by the mean over heads of the variance between sentences."""
    return float(values.mean(dim=0).var() / values.var(dim=0).mean())


Counts = Mapping[str, Float[Tensor, "2 candidates"]]  # correct and all words of each relation, by candidate


def relation_counts(predicted: Sequence[Int[Tensor, "candidates words"]], sentences: Sequence[Tagged]) -> Counts:
    """Count for each relation the words whose governing word each candidate predicts; the tags are relations."""
    counts: dict[str, Tensor] = {}
    for guesses, sentence in zip(predicted, sentences, strict=True):
        for word, (relation, head) in enumerate(zip(sentence.tags, sentence.heads or (), strict=True)):
            if head > 0:
                correct = (guesses[:, word] == head - 1).double()
                hits = torch.stack((correct, torch.ones_like(correct)))
                counts[relation] = counts[relation] + hits if relation in counts else hits
    return counts


def best_accuracy(selection: Counts, test: Counts, relations: AbstractSet[str]) -> float:
    """Return the mean over relations of the test accuracy of the candidate that is best in the selection."""
    accuracies = []
    for relation in sorted(relations):
        correct, total = test[relation]
        best = int((selection[relation][0] / selection[relation][1]).argmax())
        accuracies.append(float(correct[best] / total[best]))
    return sum(accuracies) / len(accuracies)


def offsets(length: int, largest: int) -> Int[Tensor, "candidates words"]:
    """Return the words at each offset from -largest to largest, other than 0, of each word."""
    steps = torch.tensor([step for step in range(-largest, largest + 1) if step])
    return torch.arange(length) + steps[:, None]

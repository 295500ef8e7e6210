"""What a model pre-trained with masked language modeling predicts, and what its [CLS] vector contains."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from qkv.hub import load
from qkv.models.bert import Bert
from qkv.tasks.masked_lm import MaskedLMTask
from qkv.training.run import Run
from qkv.types import Float, Int, Tensor

RULES = {
    "masked": {"mask_share": 1.0, "random_share": 0.0},
    "unchanged": {"mask_share": 0.0, "random_share": 0.0},
}  # what is done to all selected tokens
PROBE_STEPS, WEIGHT_DECAY = 100, 1e-3


def measure_pretraining(run: Run, device: str) -> Mapping[str, float]:
    """Return the accuracy at masked and at unchanged tokens, and that of a linear probe for the next sentence."""
    recipe, data = run.recipe, run.data()
    model = load(run.folder, device=device)

    def task(rule: str) -> MaskedLMTask:
        options = recipe.task.replace(**RULES[rule])
        return MaskedLMTask(data, model.tokenizer, model.config, options, recipe.train, recipe.seed)

    accuracy = {rule: (t := task(rule)).score_examples(model, t.valid)["accuracy"] for rule in RULES}
    return {**accuracy, "next sentence": next_sentence_probe(model, task("unchanged"), data.documents("valid"))}


@torch.no_grad()
def next_sentence_probe(model: Bert, task: MaskedLMTask, documents: list[str]) -> float:
    """Return the accuracy of a linear classifier of [CLS] vectors: does the second passage follow the first?

    One half of the pairs of the documents is for training the classifier, the other for the test.
    """
    task.pairs, task.train = True, documents  # pairs also for a model without a next sentence head
    vectors, labels = [], []
    for rows in task.epoch(0):
        batch = task.batch(rows).to(model.device)
        vectors.append(model(batch.token_ids, batch.segments, batch.lengths)[:, 0].float().cpu())
        labels.append(batch.next_sentence.cpu())
    x, y = torch.cat(vectors), torch.cat(labels)
    half = len(x) // 2
    return linear_probe(x[:half], y[:half], x[half:], y[half:])


@torch.enable_grad()
def linear_probe(
    x: Float[Tensor, "rows dim"],
    y: Int[Tensor, "rows"],
    test_x: Float[Tensor, "tests dim"],
    test_y: Int[Tensor, "tests"],
) -> float:
    """Fit a logistic regression to normalized features; return its accuracy on the test."""
    mean, std = x.mean(dim=0), x.std(dim=0) + 1e-6
    x, test_x = (x - mean) / std, (test_x - mean) / std
    layer = nn.Linear(x.shape[1], 2)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=PROBE_STEPS)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(x), y) + WEIGHT_DECAY * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return float((layer(test_x).argmax(dim=1) == test_y).double().mean())

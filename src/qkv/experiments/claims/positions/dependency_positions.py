"""Claim 29: positions in dependency trees help."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, SweepClaim
from qkv.experiments.claims.verdict import Difference
from qkv.registry import register

SMALL_TAGGER = (
    "data.size=2000", "data.tokenizer.vocab_size=2000", "model.preset=tiny", "model.dim=64", "model.max_length=128",
    "train.batch_size=1024", "train.epochs=6", "train.lr=2e-3", "train.warmup=30", "train.validate_every=1000",
    "train.valid_size=200",
)  # fmt: skip


@register("claim", "dependency-positions")
class DependencyPositions(SweepClaim):
    """Accuracy of a part-of-speech tagger with positions in the sentence, and with those in the tree as well."""

    number = 29
    title = "Positions in dependency trees help"
    statement = (
        "Besides the order of the words, the position of a word can be its depth in the dependency tree and its "
        "distance to other words there. This helps where syntax matters."
    )
    notes = (Note("004", "Position representation"),)
    equation = (
        "h_0 = LN(E[x_t] + P[t] + D[depth(t)]),   score(t, s) = q_t . (k_s + K[r]) / sqrt(d),   r = tree distance(t, s)"
    )
    source = ("src/qkv/nn/tree_positions.py::TreeDepth", "src/qkv/nn/tree_positions.py::TreeDistance")
    hypothesis = (
        "With gold trees, learned positions, and the same data, seeds and training settings, the part-of-speech "
        "accuracy of English web texts with tree positions is higher than without."
    )
    criteria = (Difference("accuracy: with tree positions", "accuracy: without", low=0.0),)
    figure = (
        Panel(
            "Part-of-speech tagging of English web texts", "accuracy, %",
            points=("accuracy: with tree positions", "accuracy: without"),
        ),
    )  # fmt: skip
    limits = (
        "Gold trees are informative of the part of speech: a leaf is rarely a verb. Trees of a parser have errors, and "
        "a model with more data or pre-training learns much of the syntax from the words."
    )
    recipe: ClassVar = {"small": "ewt-bert-tree", "full": "ewt-bert-tree"}
    factors: ClassVar = {"model.tree": ("both", "none")}
    labels: ClassVar = {"tree=both": "with tree positions", "tree=none": "without"}
    metric: ClassVar = {"small": "accuracy", "full": "accuracy"}
    quantity = "accuracy"
    overrides: ClassVar = {"small": SMALL_TAGGER, "full": ()}

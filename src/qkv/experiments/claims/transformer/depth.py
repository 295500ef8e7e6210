"""Claim 33: 12 to 24 layers can be stacked."""

from typing import ClassVar

from qkv.experiments.claims.claim import Note, Panel, RecipeClaim
from qkv.experiments.claims.multi30k import FULL_TRANSFORMER, SCORE_LABEL
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.registry import register

SMALL = (
    "data.size=20000", "model.dim=32", "model.ffn_dim=64", "model.decoder_layers=1", "train.batch_size=2048",
    "train.epochs=4", "train.warmup=50", "train.lr=5e-3",
)  # fmt: skip


@register("claim", "depth")
class Depth(RecipeClaim):
    """Quality of a Transformer with a shallow and with a deep encoder."""

    number = 33
    title = "12 to 24 layers can be stacked"
    statement = "The block of a Transformer can be repeated: in practice, 12 to 24 layers can be stacked and trained."
    notes = (Note("001", "Problem 2: Non-linearities"), Note("001", "Building blocks of a transformer"))
    equation = "x_l = Block_l(x_{l-1}),   l = 1 ... 12 (small scale) or 1 ... 24 (full scale)"
    source = ("src/qkv/models/transformer.py::EncoderBlock",)
    hypothesis = (
        "A deep encoder (12 layers of width 32 on dates at small scale, 24 layers on Multi30k at full scale) can be "
        "trained with the same settings as one of 2 layers: its score (exact match in percent, or BLEU) is above 20, "
        "and not 5 points or more below that of the shallow one."
    )
    criteria = (
        Mean("score: deep", low=20.0),
        Difference("score: deep", "score: shallow", low=-5.0),
    )
    figure = (
        Panel(
            "Shallow (2 layers) and deep encoder",
            SCORE_LABEL, points=("score: shallow", "score: deep"),
        ),
    )  # fmt: skip
    limits = (
        "The blocks have residual connections and normalization before each sub-layer; without them, depth fails "
        "(claims 31 and 32). On little data a deep model need not be better."
    )
    conditions: ClassVar = {
        "small": {
            "shallow": ("dates-transformer", "model.encoder_layers=2"),
            "deep": ("dates-transformer", "model.encoder_layers=12"),
        },
        "full": {
            "shallow": ("multi30k-transformer", "model.encoder_layers=2"),
            "deep": ("multi30k-transformer", "model.encoder_layers=24"),
        },
    }
    metric: ClassVar = {"small": "exact", "full": "bleu_lowercased"}
    quantity = "score"
    overrides: ClassVar = {"small": SMALL, "full": FULL_TRANSFORMER}

"""Claims of the lecture notes, one small file each; importing a file registers its claim."""

from qkv.experiments.claims import (  # noqa: F401  (imported to be registered)
    alignment,
    bottleneck,
    complexity,
    decoding,
    documents,
    examples,
    heads,
    memory,
    meta_learning,
    positions,
    pretraining,
    recurrence,
    scores,
    transformer,
    vision,
)

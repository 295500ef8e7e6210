"""Claims about align functions: soft, hard and local attention, and alignments."""

from qkv.experiments.claims.alignment import (  # noqa: F401  (imported to be registered)
    alignment_matrix,
    attention_as_explanation,
    attention_pooling,
    hard_attention_cost,
    hard_attention_variance,
    local_attention,
)

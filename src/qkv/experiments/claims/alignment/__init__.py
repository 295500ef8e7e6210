"""Claims about align functions: soft, hard and local attention, and alignments."""

from qkv.experiments.claims.alignment import hard_attention_variance  # noqa: F401  (imported to be registered)

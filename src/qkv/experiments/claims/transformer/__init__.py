"""Claims about the Transformer: masks, feed-forward networks, residuals, normalization, depth."""

from qkv.experiments.claims.transformer import masking_equals_recomputation  # noqa: F401  (imported to be registered)

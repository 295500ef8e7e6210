"""Claims about the Transformer: masks, feed-forward networks, residuals, normalization."""

from qkv.experiments.claims.transformer import (  # noqa: F401  (imported to be registered)
    causal_training,
    depth,
    feed_forward,
    masking_equals_recomputation,
    normalization,
    residuals,
    transformer_beats_rnn,
)

"""Claims about the fixed-length context of encoder-decoders, and attention as its remedy."""

from qkv.experiments.claims.bottleneck import (  # noqa: F401  (imported to be registered)
    attention_helps,
    bidirectional_encoder,
    context_every_step,
    fixed_context_by_length,
    one_rnn,
    reversed_source,
    two_rnns,
)

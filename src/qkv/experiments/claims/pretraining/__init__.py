"""Claims about pre-training and contextual representations."""

from qkv.experiments.claims.pretraining import (  # noqa: F401  (imported to be registered)
    layer_mix,
    masking_and_next_sentence,
    pretraining_helps,
    word_senses,
)

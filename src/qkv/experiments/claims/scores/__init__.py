"""Claims about scores: how queries and keys are compared."""

from qkv.experiments.claims.scores import (  # noqa: F401  (imported to be registered)
    attention_parameters,
    reduced_rank,
    scaled_dot_variance,
    score_functions,
)

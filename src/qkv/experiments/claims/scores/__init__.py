"""Claims about scores: how queries and keys are compared."""

from qkv.experiments.claims.scores import scaled_dot_variance  # noqa: F401  (imported to be registered)

"""Claims about meta-learning with attention."""

from qkv.experiments.claims.meta_learning import (  # noqa: F401  (imported to be registered)
    snail_learns,
    snail_order,
)

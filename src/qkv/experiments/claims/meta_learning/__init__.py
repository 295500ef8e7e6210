"""Claims about meta-learning with attention."""

from qkv.experiments.claims.meta_learning import snail_order  # noqa: F401  (imported to be registered)

"""Claims about multi-head attention."""

from qkv.experiments.claims.heads import multi_head_cost  # noqa: F401  (imported to be registered)

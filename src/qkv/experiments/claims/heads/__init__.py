"""Claims about multi-head attention."""

from qkv.experiments.claims.heads import multi_head_cost, multi_head_quality  # noqa: F401  (imported to be registered)

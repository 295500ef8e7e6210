"""Claims about multi-head attention."""

from qkv.experiments.claims.heads import (  # noqa: F401  (imported to be registered)
    heads_differ,
    multi_head_cost,
    multi_head_quality,
)

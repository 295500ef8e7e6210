"""Claims about recurrent networks: gradients, gates, and what attention adds to them."""

from qkv.experiments.claims.recurrence import (  # noqa: F401  (imported to be registered)
    attention_gradient,
    gates_keep_gradients,
    vanishing_gradients,
)

"""Claims about positions."""

from qkv.experiments.claims.positions import (  # noqa: F401  (imported to be registered)
    dependency_positions,
    extrapolation,
    learned_positions,
    offset_is_rotation,
    order_without_positions,
    relative_positions,
    sinusoid_criteria,
)

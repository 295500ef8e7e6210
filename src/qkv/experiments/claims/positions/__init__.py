"""Claims about positions."""

from qkv.experiments.claims.positions import (  # noqa: F401  (imported to be registered)
    dependency_positions,
    extrapolation,
    offset_is_rotation,
    order_without_positions,
    sinusoid_criteria,
)

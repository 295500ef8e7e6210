"""Worked examples of the notes, computed with the operator and compared with the printed numbers."""

from qkv.experiments.claims.examples import (  # noqa: F401  (imported to be registered)
    green_apple,
    position_digits,
    problem_1,
    sql_lookup,
)

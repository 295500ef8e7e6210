"""Claims about decoders: teacher forcing, input feeding."""

from qkv.experiments.claims.decoding import (  # noqa: F401  (imported to be registered)
    input_feeding,
    teacher_forcing,
)

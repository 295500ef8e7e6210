"""Claims about networks with a memory."""

from qkv.experiments.claims.memory import ntm_length  # noqa: F401  (imported to be registered)

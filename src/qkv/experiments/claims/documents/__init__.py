"""Claims about attention in documents."""

from qkv.experiments.claims.documents import crucial_sentences  # noqa: F401  (imported to be registered)

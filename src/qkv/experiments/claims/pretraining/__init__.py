"""Claims about pre-training and contextual representations."""

from qkv.experiments.claims.pretraining import word_senses  # noqa: F401  (imported to be registered)

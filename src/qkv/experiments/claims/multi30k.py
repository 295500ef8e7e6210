"""Settings of full-scale trainings on Multi30k: half of the epochs of the recipes, one to two minutes on a GPU."""

from qkv.experiments.claims.claim import Label

FULL_RNN = ("train.epochs=14",)
FULL_TRANSFORMER = ("train.epochs=50",)
SCORE_LABEL: Label = {"small": "exact match, %", "full": "BLEU"}  # dates at small scale

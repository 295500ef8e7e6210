"""Settings of full-scale trainings on Multi30k: half of the epochs of the recipes, one to two minutes on a GPU."""

FULL_RNN = ("train.epochs=14",)
FULL_TRANSFORMER = ("train.epochs=50",)

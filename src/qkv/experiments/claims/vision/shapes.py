"""Settings of small trainings of captioners on scenes of colored shapes."""

SMALL_CAPTIONER = (
    "data.size=6000", "model.encoder.filters=[16,32,64]", "model.hidden_dim=96", "model.feature_dim=64",
    "model.embedding_dim=32", "train.batch_size=32", "train.lr=3e-3", "train.warmup=50",
    "train.valid_size=200", "train.validate_every=500", "train.best_by=bleu",
)  # fmt: skip

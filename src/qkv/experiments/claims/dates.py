"""Settings of small trainings on dates: each run takes less than half a minute on one core."""

SMALL_GRU = (
    "data.size=20000", "model.hidden_dim=32", "model.embedding_dim=16", "train.batch_size=512",
)  # fmt: skip
SMALL_PLAIN = (  # more steps: models without attention learn slowly
    "data.size=20000", "model.hidden_dim=64", "model.embedding_dim=16", "train.batch_size=512", "train.epochs=2",
)  # fmt: skip
SMALL_TRANSFORMER = (
    "data.size=20000", "model.dim=64", "model.ffn_dim=128", "model.encoder_layers=1", "model.decoder_layers=1",
    "train.batch_size=2048", "train.epochs=4", "train.warmup=50", "train.lr=5e-3", "train.best_by=exact",
)  # fmt: skip

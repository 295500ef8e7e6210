"""Settings of small trainings on pronunciations of English words: each run takes about half a minute on one core."""

SMALL_CMUDICT = (
    "data.size=20000", "model.hidden_dim=64", "model.embedding_dim=32", "model.dropout=0.0", "train.batch_size=256",
    "train.epochs=2", "train.lr=5e-3", "train.decay=linear",
)  # fmt: skip

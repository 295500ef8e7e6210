"""Settings of one RNN over source, <TRANSLATE> and target, and of encoder-decoders trained alike on dates."""

from qkv.experiments.claims.dates import SMALL_PLAIN

SINGLE_RNN_ON_DATES = (
    "multi30k-single-rnn", 'data={ name = "dates", tokenizer = "char" }', "task.label_smoothing=0.0",
    "model.dropout=0.0", "train.lr=1e-2", "train.decay=linear", "train.weight_decay=0.2", "train.best_by=exact",
    "train.validate_every=500", "train.valid_size=500", "train.save_every=500",
)  # fmt: skip
SMALL_SINGLE_RNN = (*SINGLE_RNN_ON_DATES, *SMALL_PLAIN, "model.hidden_dim=112")  # 62,000 parameters
SMALL_ENCODER_DECODER = ("dates-gru", *SMALL_PLAIN, "model.decoder=plain", "model.context=both")  # 65,000 parameters
SMALL_WITH_ATTENTION = ("dates-gru", *SMALL_PLAIN)  # 73,000 parameters

"""The models, one file each; a recipe or a saved folder names them by these words."""

from qkv.models import rnn_seq2seq, transformer

MODELS = {
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config),
    "transformer": (transformer.Transformer, transformer.Config),
}

"""The models, one file each; a recipe or a saved folder names them by these words."""

from typing import Any

from qkv.models import rnn_seq2seq, transformer
from qkv.nn.encoder_decoder import EncoderDecoder

MODELS: dict[str, tuple[type[EncoderDecoder[Any, Any]], type[Any]]] = {
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config),
    "transformer": (transformer.Transformer, transformer.Config),
}

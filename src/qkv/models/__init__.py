"""The models, one file each; a recipe or a saved folder names them by these words."""

from typing import Any

from qkv.models import conv_seq2seq, lstmn, rnn_lm, rnn_seq2seq, transformer
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.language_model import LanguageModel

MODELS: dict[str, tuple[type[EncoderDecoder[Any, Any]] | type[LanguageModel[Any]], type[Any]]] = {
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config),
    "conv_seq2seq": (conv_seq2seq.ConvSeq2Seq, conv_seq2seq.Config),
    "transformer": (transformer.Transformer, transformer.Config),
    "rnn_lm": (rnn_lm.RNNLM, rnn_lm.Config),
    "lstmn": (lstmn.LSTMN, lstmn.Config),
}

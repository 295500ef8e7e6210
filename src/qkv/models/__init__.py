"""The models, one file each; a recipe or a saved folder names them by these words."""

from typing import Any

from torch import nn

from qkv.models import bert, conv_seq2seq, elmo, gpt2, lstmn, rnn_lm, rnn_seq2seq, transformer, vit

MODELS: dict[str, tuple[type[nn.Module], type[Any]]] = {
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config),
    "conv_seq2seq": (conv_seq2seq.ConvSeq2Seq, conv_seq2seq.Config),
    "transformer": (transformer.Transformer, transformer.Config),
    "rnn_lm": (rnn_lm.RNNLM, rnn_lm.Config),
    "lstmn": (lstmn.LSTMN, lstmn.Config),
    "gpt2": (gpt2.GPT2, gpt2.Config),
    "bert": (bert.Bert, bert.Config),
    "vit": (vit.ViT, vit.Config),
    "elmo": (elmo.Elmo, elmo.Config),
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {  # sizes that have names
    "transformer": transformer.PRESETS,
    "gpt2": gpt2.PRESETS,
    "bert": bert.PRESETS,
    "vit": vit.PRESETS,
    "elmo": elmo.PRESETS,
}

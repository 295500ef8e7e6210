"""Models, one file each, and the names that recipes and saved folders use for them."""

from typing import Any

from torch import nn

from qkv.models import (
    bert,
    conv_seq2seq,
    elmo,
    gpt2,
    han,
    linformer,
    lstm_memory,
    lstmn,
    ntm,
    rnn_lm,
    rnn_seq2seq,
    rnn_text,
    show_attend_tell,
    snail,
    transformer,
    vit,
)

MODELS: dict[str, tuple[type[nn.Module], type[Any]]] = {
    "rnn_seq2seq": (rnn_seq2seq.RNNSeq2Seq, rnn_seq2seq.Config),
    "conv_seq2seq": (conv_seq2seq.ConvSeq2Seq, conv_seq2seq.Config),
    "transformer": (transformer.Transformer, transformer.Config),
    "rnn_lm": (rnn_lm.RNNLM, rnn_lm.Config),
    "lstmn": (lstmn.LSTMN, lstmn.Config),
    "gpt2": (gpt2.GPT2, gpt2.Config),
    "bert": (bert.Bert, bert.Config),
    "linformer": (linformer.Linformer, linformer.Config),
    "vit": (vit.ViT, vit.Config),
    "captioner": (show_attend_tell.ShowAttendTell, show_attend_tell.Config),
    "ntm": (ntm.NTM, ntm.Config),
    "lstm_memory": (lstm_memory.LSTMMemory, lstm_memory.Config),
    "elmo": (elmo.Elmo, elmo.Config),
    "snail": (snail.SNAIL, snail.Config),
    "snail_policy": (snail.SNAILPolicy, snail.PolicyConfig),
    "rnn_text": (rnn_text.RNNText, rnn_text.Config),
    "han": (han.HAN, han.Config),
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {  # named sizes
    "transformer": transformer.PRESETS,
    "gpt2": gpt2.PRESETS,
    "bert": bert.PRESETS,
    "linformer": linformer.PRESETS,
    "vit": vit.PRESETS,
    "elmo": elmo.PRESETS,
}

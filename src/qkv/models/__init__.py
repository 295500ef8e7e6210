"""Models, one file each; importing a file registers its model."""

from qkv.models import (  # noqa: F401  (imported to be registered)
    bert,
    conv_seq2seq,
    elmo,
    gpt2,
    han,
    linformer,
    llama,
    lstmn,
    rnn_lm,
    rnn_seq2seq,
    rnn_text,
    show_attend_tell,
    single_rnn,
    snail,
    transformer,
    vit,
    whisper,
)
from qkv.models.memory import lstm_baseline, memory_network, ntm  # noqa: F401

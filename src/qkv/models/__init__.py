"""Models, one file each."""

from qkv.models import (
    bert as bert,
)
from qkv.models import (
    conv_seq2seq as conv_seq2seq,
)
from qkv.models import (
    elmo as elmo,
)
from qkv.models import (
    gpt2 as gpt2,
)
from qkv.models import (
    han as han,
)
from qkv.models import (
    linformer as linformer,
)
from qkv.models import (
    lstm_memory as lstm_memory,
)
from qkv.models import (
    lstmn as lstmn,
)
from qkv.models import (
    ntm as ntm,
)
from qkv.models import (
    rnn_lm as rnn_lm,
)
from qkv.models import (
    rnn_seq2seq as rnn_seq2seq,
)
from qkv.models import (
    rnn_text as rnn_text,
)
from qkv.models import (
    show_attend_tell as show_attend_tell,
)
from qkv.models import (
    snail as snail,
)
from qkv.models import (
    transformer as transformer,
)
from qkv.models import (
    vit as vit,
)

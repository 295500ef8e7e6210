"""Models, one file each; importing the package registers them.

from qkv.models import GPT2, GPT2Config

model = GPT2(GPT2Config(vocab_size=1000, dim=64, heads=4, layers=2))
"""

from qkv.models.bert import Bert, BertConfig
from qkv.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.han import HAN, HANConfig
from qkv.models.linformer import Linformer, LinformerConfig
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.lstmn import LSTMN, LSTMNConfig
from qkv.models.memory.lstm_baseline import LSTMBaseline, LSTMBaselineConfig
from qkv.models.memory.memory_network import MemoryNetwork, MemoryNetworkConfig
from qkv.models.memory.ntm import NTM, NTMConfig
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.rnn_text import RNNText, RNNTextConfig
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.models.single_rnn import SingleRNN, SingleRNNConfig
from qkv.models.snail import SNAIL, SNAILConfig, SNAILPolicy, SNAILPolicyConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.models.whisper import Whisper, WhisperConfig

__all__ = [
    "GPT2",
    "HAN",
    "LSTMN",
    "NTM",
    "RNNLM",
    "SNAIL",
    "Bert",
    "BertConfig",
    "ConvSeq2Seq",
    "ConvSeq2SeqConfig",
    "Elmo",
    "ElmoConfig",
    "GPT2Config",
    "HANConfig",
    "LSTMBaseline",
    "LSTMBaselineConfig",
    "LSTMNConfig",
    "Linformer",
    "LinformerConfig",
    "Llama",
    "LlamaConfig",
    "MemoryNetwork",
    "MemoryNetworkConfig",
    "NTMConfig",
    "RNNLMConfig",
    "RNNSeq2Seq",
    "RNNSeq2SeqConfig",
    "RNNText",
    "RNNTextConfig",
    "SNAILConfig",
    "SNAILPolicy",
    "SNAILPolicyConfig",
    "ShowAttendTell",
    "ShowAttendTellConfig",
    "SingleRNN",
    "SingleRNNConfig",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "Whisper",
    "WhisperConfig",
]

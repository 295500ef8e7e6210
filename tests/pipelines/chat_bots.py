"""Small dialogues, and models of them with random weights."""

import torch

from qkv.datasets.dataset import DialogueDataset
from qkv.datasets.examples.dialogue import Dialogue
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import DialogueTokenizer

DIALOGUES = [
    Dialogue(("hi there", "hello", "how are you?", "fine, and you?", "good")),
    Dialogue(("do you like cats?", "yes, cats are great", "dogs too?")),
    Dialogue(("what is new?", "nothing", "ok")),
]
DATA = DialogueDataset({"train": DIALOGUES, "valid": DIALOGUES[:2], "test": DIALOGUES[1:]})
SIZES = {
    "gru": (RNNSeq2Seq, RNNSeq2SeqConfig, {"embedding_dim": 16, "hidden_dim": 16}),
    "transformer": (
        Transformer,
        TransformerConfig,
        {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 32},
    ),
    "gpt": (GPT2, GPT2Config, {"dim": 16, "heads": 2, "layers": 2, "has_end_token": True}),
}


def dialogue_tokenizer(vocab_size=80):
    return DialogueTokenizer.train(DATA.training_texts(), vocab_size=vocab_size)


def dialogue_model(name, seed=0, max_length=64, **options):
    """A model with random weights that are large enough for its outputs to depend on the input."""
    torch.manual_seed(seed)
    network, config_class, sizes = SIZES[name]
    tokenizer = dialogue_tokenizer()
    keys = ("vocab_size",) if network is GPT2 else ("source_vocab_size", "target_vocab_size")
    vocab = dict.fromkeys(keys, len(tokenizer))
    model = network(config_class(**{"dropout": 0.0, **vocab, **sizes, "max_length": max_length, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if network is GPT2 else 2)
    model.tokenizer = tokenizer
    return model.eval()

"""Small models of every kind that the server takes: a trained language model, and untrained ones."""

from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F

from qkv.hub import save_model
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.lstmn import LSTMN, LSTMNConfig
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import CharTokenizer, Tokenizer, WordTokenizer
from tests.tasks.stories import memory_network
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

VERSE = "to be, or not to be: that is the question. whether 'tis nobler in the mind to suffer. "
PAIRS = ["the cat sat on the mat", "a dog lives in the film", "good cat, bad dog"]
CAPTION_WORDS = ["a red circle above a small blue square"]
SMALL_IMAGES = {"height": 8, "width": 12, "encoder": {"name": "cnn", "filters": (4, 8)}, "feature_dim": 6}


@cache
def trained_gpt(steps: int = 60) -> tuple[GPT2, Tokenizer]:
    """A GPT-2 that has read one verse: its samples resemble it, and depend on the seed."""
    tokenizer = CharTokenizer.train([VERSE])
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=len(tokenizer), dim=32, heads=4, layers=2, max_length=128))
    tokens = torch.tensor([tokenizer.encode(VERSE)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:]).backward()
        optimizer.step()
    return model.eval(), tokenizer


def language_models(folder: Path) -> None:
    """Save `gpt`, and `lstm` and `lstmn`, which the engine decodes by their own steps or not at all."""
    model, tokenizer = trained_gpt()
    saved(model, tokenizer, folder / "gpt")
    torch.manual_seed(1)
    sizes = {"vocab_size": len(tokenizer), "embedding_dim": 8, "hidden_dim": 16}
    saved(RNNLM(RNNLMConfig(**sizes)), tokenizer, folder / "lstm")
    saved(LSTMN(LSTMNConfig(**sizes)), tokenizer, folder / "lstmn")


def translators(folder: Path) -> None:
    """Save `transformer` and `gru`."""
    tokenizer = CharTokenizer.train(PAIRS)
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer), "max_length": 40}
    torch.manual_seed(3)
    transformer = TransformerConfig(dim=16, heads=2, encoder_layers=2, decoder_layers=2, ffn_dim=16, **sizes)
    for name, model in (
        ("transformer", Transformer(transformer)),
        ("gru", RNNSeq2Seq(RNNSeq2SeqConfig(embedding_dim=8, hidden_dim=8, **sizes))),
    ):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        saved(model, tokenizer, folder / name)


def encoders(folder: Path) -> None:
    """Save `classifier`, `tagger`, `answerer` and `filler`."""
    folder.mkdir(exist_ok=True)
    tokenizer = tiny_tokenizer(folder)
    names = ("negative", "neutral", "positive")
    saved(tiny_bert("classifier", labels=3, label_names=names), tokenizer, folder / "classifier")
    tags = ("O", "B-person", "I-person")
    saved(tiny_bert("tagger", labels=3, label_names=tags), tokenizer, folder / "tagger")
    saved(tiny_bert("span"), tokenizer, folder / "answerer")
    saved(tiny_bert("masked_lm"), tokenizer, folder / "filler")


def others(folder: Path) -> None:
    """Save `captioner` and `stories`."""
    tokenizer = WordTokenizer.train(CAPTION_WORDS)
    torch.manual_seed(0)
    config = ShowAttendTellConfig(
        vocab_size=len(tokenizer), embedding_dim=5, hidden_dim=7, max_length=9, **SMALL_IMAGES
    )
    saved(ShowAttendTell(config), tokenizer, folder / "captioner")
    network = memory_network()
    (folder / "stories").mkdir()
    save_model(network, network.tokenizer, folder / "stories")


def save_all(folder: Path) -> list[str]:
    """Save all models; return their folders."""
    for save in (language_models, translators, encoders, others):
        save(folder)
    return sorted(str(path.parent) for path in folder.glob("*/config.json"))

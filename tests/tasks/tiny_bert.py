"""Small untrained BERTs with fixed weights, and a WordPiece tokenizer."""

from pathlib import Path
from typing import Any

import torch

from qkv.hub import save_model
from qkv.models.bert import Bert, BertConfig
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.pretrained import read_tokenizer

WORD_LIST = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "dog", "sat", "on", "mat", "play", "##ing", "##s",
    "film", "good", "bad", ".", ",", "!", "ada", "paris", "in", "lives",
]  # fmt: skip


def tiny_tokenizer(folder: Path) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join(WORD_LIST) + "\n")
    tokenizer = read_tokenizer(folder, "bert")
    assert tokenizer is not None
    return tokenizer


def tiny_bert(head: str | None, *, vocab_size: int = len(WORD_LIST), **config: Any) -> Bert:
    torch.manual_seed(0)
    model = Bert(
        BertConfig(
            vocab_size=vocab_size, head=head, dim=16, heads=2, layers=2, ffn_dim=64, **{"max_length": 32, **config}
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) / 3)
        model.embed.tokens.weight.mul_(5)  # so that every token affects the output
    return model.eval()


def saved(model: Bert, tokenizer: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, tokenizer, folder)
    return folder

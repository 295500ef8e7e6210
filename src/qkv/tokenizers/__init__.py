"""Tokenizers: the map between texts and token ids, trained on a dataset or loaded with a model.

Recipes choose a tokenizer by name: `tokenizer = "char"` or `tokenizer = { name = "bpe", vocab_size = 8000 }`.
"""

from qkv.tokenizers.dialogue import DialogueTokenizer
from qkv.tokenizers.pair_tokenizer import PairTokenizer, load_tokenizer
from qkv.tokenizers.tokenizer import Encoding, SpecialTokens, Tokenizer
from qkv.tokenizers.trained import BPETokenizer, CharTokenizer, TrainedTokenizer, WordTokenizer
from qkv.tokenizers.wordpiece import WordPieceTokenizer

__all__ = [
    "BPETokenizer",
    "CharTokenizer",
    "DialogueTokenizer",
    "Encoding",
    "PairTokenizer",
    "SpecialTokens",
    "Tokenizer",
    "TrainedTokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "load_tokenizer",
]

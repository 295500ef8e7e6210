"""Text of tokens one at a time: the pieces are the text of all tokens, whatever the tokenizer."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from qkv.pipelines.text_stream import TextStream
from qkv.tokenizers import BPETokenizer, CharTokenizer, WordTokenizer
from qkv.tokenizers.library import PretrainedTokenizer

TEXT = "to be, or not to be: that is the question. "


def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PretrainedTokenizer(backend)


TOKENIZERS = {
    "char": lambda: CharTokenizer.train([TEXT]),
    "bpe": lambda: BPETokenizer.train([TEXT * 20], vocab_size=60),
    "word": lambda: WordTokenizer.train([TEXT]),
    "bytes": byte_tokenizer,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_concatenate_to_the_text_of_all_tokens(name):
    tokenizer, numbers = TOKENIZERS[name](), random.Random(0)
    for length in (1, 2, 30, 100):
        prompt = tokenizer.encode(TEXT)[: numbers.randint(1, 20)]
        ids = tokenizer.encode((TEXT if name != "bytes" else "Größe – 東京 🙂 ") * 5)[:length]
        stream = TextStream(tokenizer, prompt)
        pieces = [stream.append(token) for token in ids]
        text = "".join(piece or "" for piece in pieces) + stream.rest()
        assert text == tokenizer.decode([*prompt, *ids]).removeprefix(tokenizer.decode(prompt))
        assert stream.rest() == ""


def test_a_part_of_a_character_is_held_back():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, tokenizer.encode("a"))
    assert [stream.append(token) for token in tokenizer.encode("ü東")] == [None, "ü", None, None, "東"]
    stream.append(tokenizer.encode("ü")[0])
    assert stream.rest() == "\ufffd"

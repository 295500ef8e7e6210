"""Tests of WordPiece training: BERT conventions, determinism and saving."""

import random
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from qkv.config import build
from qkv.datasets.dataset import PairDataset
from qkv.datasets.pair import Pair
from qkv.errors import InputError
from qkv.tasks.train_tokenizer import train_tokenizer
from qkv.tokenizers.tokenizer import PretrainedTokenizer
from qkv.tokenizers.wordpiece import NAMES, learn_wordpieces

LETTERS = "abcdefghijé"
TEXTS = [
    " ".join("".join(rng.choices(LETTERS, k=rng.randint(1, 5))) for _ in range(30)) + ", Zoë!"
    for rng in map(random.Random, range(20))
]
LEARN = """
import random
from qkv.tokenizers import WordPieceTokenizer
from tests.tokenizers.test_wordpiece import TEXTS
print(WordPieceTokenizer.train(TEXTS, vocab_size=90, lowercase=True).to_json())
"""


def test_texts_are_tokenized_as_in_bert():
    tokenizer = WordPieceTokenizer.train(["the cats play", "the cat plays", "cat"] * 9, vocab_size=60, lowercase=True)
    assert [tokenizer.id_to_token(number) for number in range(5)] == list(NAMES.values())
    assert (
        tokenizer.special_tokens.pad,
        tokenizer.special_tokens.begin,
        tokenizer.special_tokens.end,
        tokenizer.special_tokens.mask,
    ) == (0, 2, 3, 4)
    pair = tokenizer.encode("The CATS", "play?")
    assert [tokenizer.id_to_token(number) for number in pair.ids] == [
        "[CLS]",
        "the",
        "cats",
        "[SEP]",
        "play",
        "[UNK]",
        "[SEP]",
    ]
    assert pair.segments == [0, 0, 0, 0, 1, 1, 1]
    assert pair.pieces[1:3] == ("The", "CATS")
    pieces = [tokenizer.id_to_token(number) for number in tokenizer.encode("clay")]
    assert pieces[0] in ("c", "ca", "cl")
    assert all(piece.startswith("##") for piece in pieces[1:])
    assert tokenizer.decode(tokenizer.encode("the cats played"[:-2])) == "the cats play"


def test_case_and_accents_are_kept_or_not():
    kept, folded = (WordPieceTokenizer.train(TEXTS, vocab_size=200, lowercase=lowercase) for lowercase in (False, True))
    assert folded.encode("ZOË").ids == folded.encode("zoe").ids
    assert kept.decode(kept.encode("Zoë").ids) == "Zoë"
    assert kept.special_tokens.unknown in kept.encode("zoë").ids  # no z that begins a word was ever seen


def test_training_is_deterministic_across_processes():
    """The library assigns different ids in each process, and breaks ties by id."""
    own = WordPieceTokenizer.train(TEXTS, vocab_size=90, lowercase=True).to_json()
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", LEARN], capture_output=True, text=True, check=True).stdout
        assert found.strip() == own.strip()


def test_the_pieces_equal_those_of_the_library():
    """Without ties in frequency, where the order does not matter."""
    texts = [" ".join(["banana"] * 32 + ["bandana"] * 17 + ["cabana"] * 9 + ["ananas"] * 5 + ["cat"] * 3)]
    plain = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    plain.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=24, special_tokens=list(NAMES.values())))
    assert set(WordPieceTokenizer.train(texts, vocab_size=24).tokenizer.get_vocab()) == set(plain.get_vocab())


def test_a_wordpiece_tokenizer_round_trips_through_json():
    tokenizer = WordPieceTokenizer.train(TEXTS, vocab_size=90)
    again = PretrainedTokenizer.from_json(tokenizer.to_json(), "here")
    assert again.names == tokenizer.names == NAMES
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert len(tokenizer) == 90


def test_wordpiece_vocabularies_are_configured_by_size_and_exclude_labels():
    data = PairDataset({"train": [Pair("cats play", "positive")] * 3})
    config = build(DataConfig, {"name": "imdb", "vocabulary": "wordpiece:40", "lowercase": True}, "recipe")
    found = train_tokenizer(data, config)
    assert isinstance(found, PretrainedTokenizer)
    assert not any("o" in token for token in found.tokenizer.get_vocab() if token not in NAMES.values())
    for kind in ("wordpiece", "wordpiece:4", "wordpiece:12345678"):
        with pytest.raises(
            InputError, match=r"use char, word, word:N, bpe:N or wordpiece:N, with N from 5 to 1,000,000"
        ):
            build(DataConfig, {"name": "imdb", "vocabulary": kind}, "recipe", prefix="data.")


def test_wordpiece_is_not_supported_by_vocabulary_train():
    with pytest.raises(InputError, match="'wordpiece:40' is not supported"):
        WordPieceTokenizer.train(TEXTS, vocab_size=40)

"""WordPieces that are learned here: BERT's tokens and edges, the same at every learning, and kept in a file."""

import random
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from qkv.config import build
from qkv.data.pair import Pair
from qkv.data.registry import DataConfig, LoadedData, learn_vocabulary
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import NAMES, learn_wordpieces
from qkv.errors import InputError

LETTERS = "abcdefghijé"
TEXTS = [
    " ".join("".join(chance.choices(LETTERS, k=chance.randint(1, 5))) for _ in range(30)) + ", Zoë!"
    for chance in map(random.Random, range(20))
]
LEARN = """
import random
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import learn_wordpieces
from tests.data.test_wordpiece import TEXTS
print(learn_wordpieces(TEXTS, 90, lowercase=True).to_json())
"""


def test_a_text_is_read_as_bert_reads_it():
    tokenizer = learn_wordpieces(["the cats play", "the cat plays", "cat"] * 9, 60, lowercase=True)
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
    pieces = [tokenizer.id_to_token(number) for number in tokenizer.encode("clay", specials=False).ids]
    assert pieces[0] in ("c", "ca", "cl")
    assert all(piece.startswith("##") for piece in pieces[1:])
    assert tokenizer.decode(tokenizer.encode("the cats played"[:-2]).ids) == "the cats play"


def test_case_and_accents_are_kept_or_not():
    kept, folded = (learn_wordpieces(TEXTS, 200, lowercase=lowercase) for lowercase in (False, True))
    assert folded.encode("ZOË").ids == folded.encode("zoe").ids
    assert kept.decode(kept.encode("Zoë").ids) == "Zoë"
    assert kept.special_tokens.unknown in kept.encode("zoë").ids  # no z that begins a word was ever seen


def test_the_same_texts_give_the_same_tokens_in_another_process_too():
    """The library alone gives other numbers in each process, and decides ties by them."""
    own = learn_wordpieces(TEXTS, 90, lowercase=True).to_json()
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", LEARN], capture_output=True, text=True, check=True).stdout
        assert found.strip() == own.strip()


def test_the_pieces_are_those_that_the_library_learns():
    """Where no two are equally frequent, so that nothing is left to its order."""
    texts = [" ".join(["banana"] * 32 + ["bandana"] * 17 + ["cabana"] * 9 + ["ananas"] * 5 + ["cat"] * 3)]
    plain = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    plain.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=24, special_tokens=list(NAMES.values())))
    assert set(learn_wordpieces(texts, 24).tokenizer.get_vocab()) == set(plain.get_vocab())


def test_what_is_written_is_read_again_the_same():
    tokenizer = learn_wordpieces(TEXTS, 90)
    again = PretrainedTokenizer.from_json(tokenizer.to_json(), "here")
    assert again.names == tokenizer.names == NAMES
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert len(tokenizer) == 90


def test_a_recipe_asks_for_word_pieces_by_their_number_and_labels_are_none_of_them():
    data = LoadedData({"train": [Pair("cats play", "positive")] * 3})
    config = build(DataConfig, {"name": "imdb", "vocabulary": "wordpiece:40", "lowercase": True}, "recipe")
    found = learn_vocabulary(data, config)
    assert isinstance(found, PretrainedTokenizer)
    assert not any("o" in token for token in found.tokenizer.get_vocab() if token not in NAMES.values())
    for kind in ("wordpiece", "wordpiece:4", "wordpiece:12345678"):
        with pytest.raises(
            InputError, match=r"use char, word, word:N, bpe:N or wordpiece:N, with N from 5 to 1,000,000"
        ):
            build(DataConfig, {"name": "imdb", "vocabulary": kind}, "recipe", prefix="data.")


def test_word_pieces_are_no_vocabulary_of_a_side():
    with pytest.raises(InputError, match="'wordpiece:40' is not supported"):
        Vocabulary.train(TEXTS, "wordpiece:40")

"""Tests of WordPiece training: BERT conventions, determinism and saving."""

import random
import subprocess
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from qkv.config import Term
from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.registry import lookup
from qkv.tasks.base.task import train_tokenizer
from qkv.tokenizers import SpecialTokens, WordPieceTokenizer, load_tokenizer
from qkv.tokenizers.wordpiece import NAMES

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
    assert tokenizer.special_tokens == SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    (encoding,) = tokenizer.encode_with_offsets(["The CATS play?"], add_special_tokens=True)
    pieces = [tokenizer.id_to_token(number) for number in encoding.ids]
    assert pieces == ["[CLS]", "the", "cats", "play", "[UNK]", "[SEP]"]
    assert encoding.pieces[1:3] == ("The", "CATS")
    pieces = [tokenizer.id_to_token(number) for number in tokenizer.encode("clay")]
    assert pieces[0] in ("c", "ca", "cl")
    assert all(piece.startswith("##") for piece in pieces[1:])
    assert tokenizer.decode(tokenizer.encode("the cats played"[:-2])) == "the cats play"


def test_case_and_accents_are_kept_or_not():
    kept, folded = (WordPieceTokenizer.train(TEXTS, vocab_size=200, lowercase=lowercase) for lowercase in (False, True))
    assert folded.encode("ZOË") == folded.encode("zoe")
    assert kept.decode(kept.encode("Zoë")) == "Zoë"
    assert kept.special_tokens.unk in kept.encode("zoë")  # no z that begins a word was ever seen


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
    assert set(WordPieceTokenizer.train(texts, vocab_size=24).vocab) == set(plain.get_vocab())


def test_a_wordpiece_tokenizer_round_trips_through_json():
    tokenizer = WordPieceTokenizer.train(TEXTS, vocab_size=90)
    again = WordPieceTokenizer.from_json(tokenizer.to_json(), "here")
    assert again.names == tokenizer.names == NAMES
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert len(tokenizer) == 90


def test_a_recipe_trains_on_the_texts_without_the_labels():
    data = LabeledTextDataset({"train": [Pair("cats play", "positive")] * 3})
    tokenizer = Term("tokenizer", "wordpiece", {"vocab_size": 40})
    trained = train_tokenizer(data, lookup("dataset", "imdb")(tokenizer=tokenizer, lowercase=True))
    assert type(trained) is WordPieceTokenizer
    assert not any("o" in token for token in trained.vocab if token not in NAMES.values())


def test_a_saved_tokenizer_is_loaded_with_its_special_tokens(tmp_path):
    tokenizer = WordPieceTokenizer.train(TEXTS, vocab_size=90)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is WordPieceTokenizer
    assert again.special_tokens == tokenizer.special_tokens
    assert again.encode(TEXTS, add_special_tokens=True) == tokenizer.encode(TEXTS, add_special_tokens=True)

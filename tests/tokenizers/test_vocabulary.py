"""Tests of vocabularies, and of crafted tokenizer.json files."""

import json
import random
import string
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import CheckpointError, InputError
from qkv.tokenizers.vocabulary import BEGIN, END, PAD, SPECIAL, UNKNOWN, TwoVocabularies, Vocabulary

TEXTS = ["Zwei Hunde spielen im Schnee.", "Das Café öffnet um fünf.", "5 марта 2026 г.", "a\tb"]
KINDS = ["char", "bpe:80", "word"]
Table = dict[str, Any]


@pytest.fixture(params=KINDS, scope="module")
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary.train(TEXTS * 3, request.param)


def marked_up(rng: random.Random) -> str:
    """Return random words with the names of special tokens inside."""
    return "".join(rng.choices(string.ascii_lowercase, k=2)).join(SPECIAL)


def test_special_tokens_come_first(vocabulary: Vocabulary) -> None:
    assert [vocabulary.piece(number) for number in (PAD, UNKNOWN, BEGIN, END)] == ["<pad>", "<unk>", "<s>", "</s>"]


def test_training_texts_round_trip(vocabulary: Vocabulary) -> None:
    for text in TEXTS:
        tokens = vocabulary.encode(text)
        assert vocabulary.decode(tokens.ids) == text
        assert vocabulary.unknown_pieces(tokens) == ()
    assert vocabulary.encode_ids(TEXTS) == [vocabulary.encode(text).ids for text in TEXTS]


def test_characters_are_the_tokens_of_a_character_vocabulary() -> None:
    vocabulary = Vocabulary.train(["ab\n", "b\tc"], "char")
    assert len(vocabulary) == len(SPECIAL) + 5
    assert vocabulary.encode("c\tb\na").pieces == ("c", "\t", "b", "\n", "a")
    assert vocabulary.decode(vocabulary.encode("c\tb\na").ids) == "c\tb\na"


def test_subwords_are_fewer_than_characters_and_the_size_is_as_configured() -> None:
    vocabulary = Vocabulary.train(["the cat sat on the mat with the hat"] * 9, "bpe:30")
    assert len(vocabulary) == 30
    assert vocabulary.encode("the cat").pieces == ("the", " cat")


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30))
def test_pieces_concatenate_to_the_text(kind: str, text: str) -> None:
    vocabulary = TRAINED[kind]
    tokens = vocabulary.encode(text)
    assert len(tokens.ids) == len(tokens.pieces)
    assert "".join(tokens.pieces) == text
    assert not {PAD, BEGIN, END} & set(tokens.ids)


TRAINED = {kind: Vocabulary.train(TEXTS * 3, kind) for kind in KINDS}


def test_composed_and_decomposed_accents_are_the_same_tokens(vocabulary: Vocabulary) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Das Café öffnet") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert vocabulary.encode(composed).ids == vocabulary.encode(decomposed).ids
    assert "".join(vocabulary.encode(decomposed).pieces) == decomposed
    assert vocabulary.unknown_pieces(vocabulary.encode(decomposed)) == ()


def test_unseen_pieces_become_unknown_and_are_reported_once() -> None:
    characters = TRAINED["char"]
    tokens = characters.encode("☃Zwei☃漢\n")
    assert [number == UNKNOWN for number in tokens.ids] == [True, *[False] * 4, True, True, True]
    assert characters.unknown_pieces(tokens) == ("☃", "漢", "\n")
    subwords = TRAINED["bpe:80"]
    assert subwords.unknown_pieces(subwords.encode("Zwei ☃漢字 Hunde ☃漢字")) == ("☃", "漢字")


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_special_token_is_plain_text_when_a_user_writes_it(kind: str) -> None:
    rng = random.Random(0)
    trained = Vocabulary.train([*TEXTS, "a b<s>b", *(marked_up(rng) for _ in range(300))], kind)
    for vocabulary in (trained, Vocabulary.from_json(trained.to_json(), "here")):
        for text in ("<pad>", "a<s>b</s>", " <pad> <unk></s>", "<s>"):
            tokens = vocabulary.encode(text)
            assert not {PAD, UNKNOWN, BEGIN, END} & set(tokens.ids)
            assert vocabulary.decode(tokens.ids).strip() == text.strip()
            assert vocabulary.encode_ids([text]) == [tokens.ids]


def test_a_vocabulary_round_trips_through_json(vocabulary: Vocabulary) -> None:
    again = Vocabulary.from_json(vocabulary.to_json(), "here")
    assert again.to_json() == vocabulary.to_json()
    for text in [*TEXTS, "<pad> neu ☃\n", "e\u0301"]:
        assert again.encode(text) == vocabulary.encode(text)


@pytest.mark.parametrize(
    "kind",
    ["", "chars", "char:5", "bpe", "bpe:", "bpe:x", "bpe:4", "bpe:-1", "bpe:1000001", "bpe:" + "9" * 5000,
     "word:", "word:4", "words", "word:1000001", "word:٩٩"],
)  # fmt: skip
def test_unknown_vocabulary_kinds_are_rejected(kind: str) -> None:
    with pytest.raises(InputError, match="use char, word, word:N, bpe:N or wordpiece:N, with N from 5 to 1,000,000"):
        Vocabulary.train(TEXTS, kind)


def test_words_keep_the_space_before_them_and_punctuation_is_separate() -> None:
    text = "Don't (ever) stop, it costs 3.50!"
    vocabulary = Vocabulary.train([text], "word")
    pieces = ("Don", "'", "t", " (", "ever", ")", " stop", ",", " it", " costs", " 3", ".", "50", "!")
    assert vocabulary.encode(text).pieces == pieces
    assert vocabulary.decode(vocabulary.encode(text).ids) == text


def test_phonemes_are_the_words_of_a_word_vocabulary() -> None:
    vocabulary = Vocabulary.train(["K AE1 T", "HH AE1 T"], "word")
    assert sorted(vocabulary.piece(number) for number in range(4, len(vocabulary))) == [" AE1", " HH", " K", " T"]
    assert vocabulary.decode(vocabulary.encode("HH AE1 T K").ids) == "HH AE1 T K"


def test_the_most_frequent_words_are_kept_and_the_others_are_unknown() -> None:
    texts = ["a b c", "a b d", "a b e", "a c f"]
    vocabulary = Vocabulary.train(texts, "word:7")
    assert [vocabulary.piece(number) for number in range(len(vocabulary))] == [*SPECIAL, " a", " b", " c"]
    tokens = vocabulary.encode("f a  x x")
    assert tokens.ids == [UNKNOWN, 4, UNKNOWN, UNKNOWN, UNKNOWN]
    assert vocabulary.unknown_pieces(tokens) == ("f", " ", "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_lowercased_vocabulary_stays_lowercased_after_saving(kind: str) -> None:
    trained = Vocabulary.train(TEXTS * 3, kind, lowercase=True)
    for vocabulary in (trained, Vocabulary.from_json(trained.to_json(), "here")):
        for text in TEXTS:
            tokens = vocabulary.encode(text)
            assert vocabulary.decode(tokens.ids) == text.lower() == vocabulary.normalize(text)
            assert "".join(tokens.pieces) == text  # what a person sees is what was written
            assert vocabulary.encode(text.upper()).ids == tokens.ids
            assert vocabulary.unknown_pieces(tokens) == ()
    assert len(trained) <= len(TRAINED[kind])
    assert TRAINED[kind].normalize("Cafe\u0301") == "Café"


def test_source_and_target_vocabularies() -> None:
    letters, phonemes = Vocabulary.train(["cat"], "char"), Vocabulary.train(["K AE1 T"], "word")
    assert letters.source is letters
    assert letters.target is letters
    both = TwoVocabularies(letters, phonemes)
    assert (both.source, both.target) == (letters, phonemes)


def test_the_same_texts_give_the_same_vocabulary() -> None:
    for kind in KINDS:
        assert Vocabulary.train(TEXTS, kind).to_json() == Vocabulary.train(TEXTS, kind).to_json()


def swap_specials(data: Table) -> None:
    vocab = data["model"]["vocab"]
    vocab["<pad>"], vocab["<s>"] = vocab["<s>"], vocab["<pad>"]
    data["added_tokens"] = []


def panic_on_load(data: Table) -> None:
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def name_an_unknown_token_that_is_not_there(data: Table) -> None:
    data["model"]["unk_token"] = "nope"


def drop_what_is_unknown(data: Table) -> None:
    data["model"]["unk_token"] = None


def number_a_token_beyond_the_vocabulary(data: Table) -> None:
    data["model"]["vocab"]["zz"] = 10**6


def number_two_tokens_alike(data: Table) -> None:
    data["model"]["vocab"]["zz"] = 5


def break_the_pattern(data: Table) -> None:
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "change",
    [
        swap_specials,
        panic_on_load,
        name_an_unknown_token_that_is_not_there,
        drop_what_is_unknown,
        number_a_token_beyond_the_vocabulary,
        number_two_tokens_alike,
        break_the_pattern,
    ],
)
def test_a_crafted_tokenizer_is_rejected(change: Callable[[Table], None]) -> None:
    data = json.loads(TRAINED["bpe:80"].to_json())
    change(data)
    with pytest.raises(CheckpointError) as caught:
        Vocabulary.from_json(json.dumps(data), "here/tokenizer.json")
    assert str(caught.value).startswith("here/tokenizer.json: ")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{", '{"model": {}}'])
def test_invalid_tokenizer_files_are_rejected(text: str) -> None:
    with pytest.raises(CheckpointError, match="here"):
        Vocabulary.from_json(text, "here")


def test_truncation_and_padding_in_a_tokenizer_file_change_nothing() -> None:
    vocabulary = TRAINED["char"]
    data = json.loads(vocabulary.to_json())
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    data["padding"] = {
        "strategy": {"Fixed": 30}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    crafted = Vocabulary.from_json(json.dumps(data), "here")
    assert crafted.encode(TEXTS[0]) == vocabulary.encode(TEXTS[0])


def test_subwords_do_not_grow_across_punctuation() -> None:
    text = "in the street. the street, (street) street's"
    learned = Vocabulary.train([text] * 50, "bpe:60")
    pieces = [learned.piece(number) for number in range(4, len(learned))]
    assert " street" in pieces
    assert not [piece for piece in pieces if len(piece.strip()) > 1 and not piece.strip().isalpha()]
    assert learned.decode(learned.encode(text).ids) == text

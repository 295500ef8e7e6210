"""Tests of trained tokenizers, and of crafted tokenizer.json files."""

import json
import random
import string
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import parse_term
from qkv.errors import CheckpointError, InputError
from qkv.registry import lookup, register
from qkv.tokenizers import (
    BPETokenizer,
    CharTokenizer,
    Encoding,
    PairTokenizer,
    SpecialTokens,
    Tokenizer,
    TrainedTokenizer,
    WordTokenizer,
    load_tokenizer,
)
from qkv.tokenizers.trained import BEGIN, END, PAD, SPECIAL, UNK

TEXTS = ["Zwei Hunde spielen im Schnee.", "Das Café öffnet um fünf.", "5 марта 2026 г.", "a\tb"]
KINDS = {"char": {}, "bpe": {"vocab_size": 80}, "word": {}}  # options
Table = dict[str, Any]
COUNTS = {"the": 5, "cat": 2, "The": 3, "n't": 2, "<s>": 9, "rare": 1}


def train(texts: list[str], kind: str, **options: Any) -> TrainedTokenizer:
    return lookup("tokenizer", kind).train(texts, **KINDS[kind], **options)


def tokens(tokenizer: TrainedTokenizer) -> list[str]:
    return [tokenizer.piece(number) for number in range(len(tokenizer))]


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> TrainedTokenizer:
    return train(TEXTS * 3, request.param)


def marked_up(rng: random.Random) -> str:
    """Return random words with the names of special tokens inside."""
    return "".join(rng.choices(string.ascii_lowercase, k=2)).join(SPECIAL)


def test_special_tokens_come_first(tokenizer: TrainedTokenizer) -> None:
    assert [tokenizer.piece(number) for number in (PAD, UNK, BEGIN, END)] == ["<pad>", "<unk>", "<s>", "</s>"]


def test_training_texts_round_trip(tokenizer: TrainedTokenizer) -> None:
    for text in TEXTS:
        (encoding,) = tokenizer.encode_with_offsets([text])
        assert tokenizer.decode(encoding.ids) == text
        assert tokenizer.unknown_pieces(encoding) == ()
    assert tokenizer.encode(TEXTS) == [encoding.ids for encoding in tokenizer.encode_with_offsets(TEXTS)]
    assert tokenizer.encode(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_characters_are_the_tokens_of_a_character_tokenizer() -> None:
    tokenizer = CharTokenizer.train(["ab\n", "b\tc"])
    assert len(tokenizer) == len(SPECIAL) + 5
    assert tokenizer.encode_with_offsets(["c\tb\na"])[0].pieces == ("c", "\t", "b", "\n", "a")
    assert tokenizer.decode(tokenizer.encode("c\tb\na")) == "c\tb\na"


def test_subwords_are_fewer_than_characters_and_the_size_is_as_configured() -> None:
    tokenizer = BPETokenizer.train(["the cat sat on the mat with the hat"] * 9, vocab_size=30)
    assert len(tokenizer) == 30
    assert tokenizer.encode_with_offsets(["the cat"])[0].pieces == ("the", " cat")


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30))
def test_pieces_concatenate_to_the_text(kind: str, text: str) -> None:
    tokenizer = TRAINED[kind]
    (encoding,) = tokenizer.encode_with_offsets([text])
    assert len(encoding.ids) == len(encoding.pieces)
    assert "".join(encoding.pieces) == text
    assert not {PAD, BEGIN, END} & set(encoding.ids)


TRAINED = {kind: train(TEXTS * 3, kind) for kind in KINDS}


def test_composed_and_decomposed_accents_are_the_same_tokens(tokenizer: TrainedTokenizer) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Das Café öffnet") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert tokenizer.encode(composed) == tokenizer.encode(decomposed)
    assert "".join(tokenizer.encode_with_offsets([decomposed])[0].pieces) == decomposed
    assert tokenizer.unknown_pieces(*tokenizer.encode_with_offsets([decomposed])) == ()


def test_unseen_pieces_become_unknown_and_are_reported_once() -> None:
    characters = TRAINED["char"]
    (encoding,) = characters.encode_with_offsets(["☃Zwei☃漢\n"])
    assert [number == UNK for number in encoding.ids] == [True, *[False] * 4, True, True, True]
    assert characters.unknown_pieces(encoding) == ("☃", "漢", "\n")
    subwords = TRAINED["bpe"]
    assert subwords.unknown_pieces(*subwords.encode_with_offsets(["Zwei ☃漢字 Hunde ☃漢字"])) == ("☃", "漢字")


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_special_token_is_plain_text_when_a_user_writes_it(kind: str) -> None:
    rng = random.Random(0)
    trained = train([*TEXTS, "a b<s>b", *(marked_up(rng) for _ in range(300))], kind)
    for tokenizer in (trained, TrainedTokenizer.from_json(trained.to_json(), "here")):
        for text in ("<pad>", "a<s>b</s>", " <pad> <unk></s>", "<s>"):
            (encoding,) = tokenizer.encode_with_offsets([text])
            assert not {PAD, UNK, BEGIN, END} & set(encoding.ids)
            assert tokenizer.decode(encoding.ids).strip() == text.strip()
            assert tokenizer.encode([text]) == [encoding.ids]


def test_a_tokenizer_round_trips_through_json(tokenizer: TrainedTokenizer) -> None:
    again = TrainedTokenizer.from_json(tokenizer.to_json(), "here")
    assert again.to_json() == tokenizer.to_json()
    for text in [*TEXTS, "<pad> neu ☃\n", "e\u0301"]:
        assert again.encode_with_offsets([text]) == tokenizer.encode_with_offsets([text])


@pytest.mark.parametrize(
    ("term", "word"),
    [
        ("", "unknown tokenizer"),
        ("chars", "did you mean char"),
        ("bpe:80", "unknown tokenizer"),
        ({"name": "bpe", "vocab_size": 4}, "vocab_size"),
        ({"name": "bpe", "vocab_size": 1_000_001}, "vocab_size"),
        ({"name": "bpe", "vocab_size": "80"}, "vocab_size"),
        ({"name": "char", "vocab_size": 80}, "vocab_size"),
        ({"name": "word", "lowercase": True}, "lowercase"),
    ],
)
def test_invalid_terms_are_rejected(term: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_term("tokenizer", term)


def test_options_of_a_term_are_those_of_training() -> None:
    term = parse_term("tokenizer", {"name": "bpe", "vocab_size": 60})
    trained = term.cls.train(TEXTS * 3, lowercase=True, **term.options)
    assert type(trained) is BPETokenizer
    assert len(trained) == 60
    assert trained.normalize("ÉA") == "éa"


def test_words_keep_the_space_before_them_and_punctuation_is_separate() -> None:
    text = "Don't (ever) stop, it costs 3.50!"
    tokenizer = WordTokenizer.train([text])
    pieces = ("Don", "'", "t", " (", "ever", ")", " stop", ",", " it", " costs", " 3", ".", "50", "!")
    assert tokenizer.encode_with_offsets([text])[0].pieces == pieces
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_phonemes_are_the_words_of_a_word_tokenizer() -> None:
    tokenizer = WordTokenizer.train(["K AE1 T", "HH AE1 T"])
    assert sorted(tokenizer.piece(number) for number in range(4, len(tokenizer))) == [" AE1", " HH", " K", " T"]
    assert tokenizer.decode(tokenizer.encode("HH AE1 T K")) == "HH AE1 T K"


def test_the_most_frequent_words_are_kept_and_the_others_are_unknown() -> None:
    texts = ["a b c", "a b d", "a b e", "a c f"]
    tokenizer = WordTokenizer.train(texts, vocab_size=7)
    assert [tokenizer.piece(number) for number in range(len(tokenizer))] == [*SPECIAL, " a", " b", " c"]
    (encoding,) = tokenizer.encode_with_offsets(["f a  x x"])
    assert encoding.ids == [UNK, 4, UNK, UNK, UNK]
    assert tokenizer.unknown_pieces(encoding) == ("f", " ", "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_lowercased_tokenizer_stays_lowercased_after_saving(kind: str) -> None:
    trained = train(TEXTS * 3, kind, lowercase=True)
    for tokenizer in (trained, TrainedTokenizer.from_json(trained.to_json(), "here")):
        for text in TEXTS:
            (encoding,) = tokenizer.encode_with_offsets([text])
            assert tokenizer.decode(encoding.ids) == text.lower() == tokenizer.normalize(text)
            assert "".join(encoding.pieces) == text  # what a person sees is what was written
            assert tokenizer.encode(text.upper()) == encoding.ids
            assert tokenizer.unknown_pieces(encoding) == ()
    assert len(trained) <= len(TRAINED[kind])
    assert TRAINED[kind].normalize("Cafe\u0301") == "Café"


def test_a_pair_encodes_sources_and_decodes_targets(tmp_path: Path) -> None:
    letters, phonemes = CharTokenizer.train(["cat"]), WordTokenizer.train(["K AE1 T"])
    assert letters.source is letters
    assert letters.target is letters
    pair = PairTokenizer(letters, phonemes)
    assert (pair.source, pair.target) == (letters, phonemes)
    assert pair.encode("tac") == letters.encode("tac")
    assert pair.decode(phonemes.encode("T K")) == "T K"
    pair.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (type(again.source), type(again.target)) == (CharTokenizer, WordTokenizer)
    assert (again.source.vocab, again.target.vocab) == (letters.vocab, phonemes.vocab)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_loaded_with_its_class(tmp_path: Path, kind: str) -> None:
    TRAINED[kind].save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(TRAINED[kind])
    assert again.encode(TEXTS) == TRAINED[kind].encode(TEXTS)


@register("tokenizer", "test-bytes")
class ByteTokenizer(Tokenizer):
    """A tokenizer from outside the package: an offset and the bytes of a text."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.special_tokens = SpecialTokens(pad=0, unk=1, begin=2, end=3)

    @classmethod
    def train(cls, texts: Iterable[str], lowercase: bool = False, *, first: int = 4) -> "ByteTokenizer":
        return cls(first)

    @property
    def vocab(self) -> dict[str, int]:
        return {f"<{byte:02x}>": self.first + byte for byte in range(256)}

    def encode_with_offsets(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[Encoding]:
        return [
            Encoding(
                [self.first + byte for byte in text.encode("ascii")],
                [(k, k + 1) for k in range(len(text))],
                tuple(text),
            )
            for text in texts
        ]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(number - self.first for number in ids).decode("ascii")

    def save(self, folder: Path, prefix: str = "") -> None:
        super().save(folder, prefix)
        (folder / f"{prefix}tokenizer.json").write_text(str(self.first))

    @classmethod
    def load(cls, folder: Path, prefix: str = "") -> "ByteTokenizer":
        return cls(int((folder / f"{prefix}tokenizer.json").read_text()))


def test_a_tokenizer_from_outside_is_trained_by_name_and_saved(tmp_path: Path) -> None:
    term = parse_term("tokenizer", {"name": "test-bytes", "first": 9})
    tokenizer = term.cls.train(TEXTS, lowercase=False, **term.options)
    assert tokenizer.encode("ab") == [9 + 97, 9 + 98]
    PairTokenizer(tokenizer, TRAINED["char"]).save(tmp_path)
    again = load_tokenizer(tmp_path).source
    assert type(again) is ByteTokenizer
    assert again.decode(again.encode(["ab"])[0]) == "ab"
    assert (again.id_to_token(9), len(again)) == ("<00>", 265)
    with pytest.raises(InputError, match="BPE-dropout"):
        tokenizer.encode("ab", dropout=0.1)


def test_an_unknown_class_of_a_saved_tokenizer_is_an_error(tmp_path: Path) -> None:
    TRAINED["char"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"qkv_tokenizer": "nope"}')
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: unknown tokenizer 'nope'"):
        load_tokenizer(tmp_path)


def test_words_from_counts_are_ordered_by_frequency_and_then_by_the_alphabet() -> None:
    assert tokens(WordTokenizer.from_counts(COUNTS)) == [*SPECIAL, "the", "The", "cat", "n't", "rare"]
    assert tokens(WordTokenizer.from_counts(COUNTS, vocab_size=7)) == [*SPECIAL, "the", "The", "cat"]
    lowercased = WordTokenizer.from_counts(COUNTS | {"x": 7}, lowercase=True, vocab_size=6)
    assert tokens(lowercased) == [*SPECIAL, "the", "x"]


def test_words_from_counts_are_tokens_and_others_are_unknown_also_after_saving() -> None:
    words = WordTokenizer.from_counts(COUNTS, vocab_size=7)
    for tokenizer in (words, WordTokenizer.from_json(words.to_json(), "here")):
        assert tokenizer.encode(["the", "n't", "THE"]) == [[4], [UNK], [UNK]]


def test_the_same_texts_give_the_same_tokenizer() -> None:
    for kind in KINDS:
        assert train(TEXTS, kind).to_json() == train(TEXTS, kind).to_json()


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
    data = json.loads(TRAINED["bpe"].to_json())
    change(data)
    with pytest.raises(CheckpointError) as caught:
        TrainedTokenizer.from_json(json.dumps(data), "here/tokenizer.json")
    assert str(caught.value).startswith("here/tokenizer.json: ")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{", '{"model": {}}'])
def test_invalid_tokenizer_files_are_rejected(text: str) -> None:
    with pytest.raises(CheckpointError, match="here"):
        TrainedTokenizer.from_json(text, "here")


def test_truncation_and_padding_in_a_tokenizer_file_change_nothing() -> None:
    tokenizer = TRAINED["char"]
    data = json.loads(tokenizer.to_json())
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    data["padding"] = {
        "strategy": {"Fixed": 30}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    crafted = TrainedTokenizer.from_json(json.dumps(data), "here")
    assert crafted.encode_with_offsets(TEXTS) == tokenizer.encode_with_offsets(TEXTS)


def test_subwords_do_not_grow_across_punctuation() -> None:
    text = "in the street. the street, (street) street's"
    learned = BPETokenizer.train([text] * 50, vocab_size=60)
    pieces = [learned.piece(number) for number in range(4, len(learned))]
    assert " street" in pieces
    assert not [piece for piece in pieces if len(piece.strip()) > 1 and not piece.strip().isalpha()]
    assert learned.decode(learned.encode(text)) == text

"""The tokenizer of dialogues: speakers, turns, and the limits of a history."""

import pytest

from qkv.errors import CheckpointError
from qkv.tokenizers import BPETokenizer, load_tokenizer
from qkv.tokenizers.dialogue import history_start, truncate_turn, with_speakers
from tests.pipelines.chat_bots import dialogue_tokenizer

TEXT = "hi there\nhello\nhow are you?"


def test_turns_begin_with_their_speakers_and_end_with_an_end_token():
    tokenizer = dialogue_tokenizer()
    first, second, end = (tokenizer.vocab[token] for token in ("<speaker1>", "<speaker2>", "</s>"))
    turns = [tokenizer.target.encode(turn) for turn in TEXT.split("\n")]
    expected = [first, *turns[0], end, second, *turns[1], end, first, *turns[2], end]
    assert tokenizer.encode(TEXT) == expected
    assert tokenizer.encode(TEXT, add_special_tokens=True) == [*expected, second]
    assert tokenizer.encode("hello") == [first, *turns[1], end]  # the last turn is the first speaker's
    assert tokenizer.encode("hi there\nhello")[0] == second
    assert tokenizer.join_turns(turns) == expected
    (encoding,) = tokenizer.encode_with_offsets([TEXT], add_special_tokens=True)
    assert encoding.ids == [*expected, second]


def test_offsets_and_pieces_are_those_of_the_text():
    tokenizer = dialogue_tokenizer()
    for encoding in tokenizer.encode_with_offsets([TEXT, "yes\n\nno"], add_special_tokens=True):
        assert len(encoding.ids) == len(encoding.offsets) == len(encoding.pieces)
    (encoding,) = tokenizer.encode_with_offsets([TEXT])
    assert "".join(TEXT[start:end] for start, end in encoding.offsets) == TEXT.replace("\n", "")
    spans = [(start, end) for start, end in encoding.offsets if start < end]
    assert [TEXT[start:end] for start, end in spans] == [piece for piece in encoding.pieces if piece[0] != "<"]
    marked = "<speaker1> hi there </s> <speaker2> hello </s> <speaker1> how are you? </s> <speaker2>"
    assert with_speakers(TEXT) == marked


def test_special_tokens_in_a_text_are_plain_text():
    tokenizer = dialogue_tokenizer()
    ids = tokenizer.target.encode("<speaker1> hi </s>")
    assert not {tokenizer.vocab[token] for token in ("<speaker1>", "<speaker2>", "</s>")} & set(ids)


def test_saved_tokenizers_load_and_need_the_speakers(tmp_path):
    tokenizer = dialogue_tokenizer()
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    assert loaded.encode(TEXT, add_special_tokens=True) == tokenizer.encode(TEXT, add_special_tokens=True)
    assert len(loaded) == len(tokenizer)
    plain = BPETokenizer.train(["hi there"], vocab_size=20)
    (tmp_path / "tokenizer.json").write_text(plain.to_json())
    with pytest.raises(CheckpointError, match="speaker1"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("lengths", "turns", "tokens", "start"),
    [
        ([5, 5, 5], 4, 100, 0),
        ([5, 5, 5], 2, 100, 1),
        ([5, 5, 5], 4, 22, 0),  # 3 * (5 + 2) + 1
        ([5, 5, 5], 4, 21, 1),
        ([5, 5, 5], 4, 15, 1),
        ([5, 5, 5], 4, 14, 2),
        ([5, 5, 50], 4, 14, 2),  # at least the last turn
        ([50], 1, 1, 0),
        ([50, 1, 1], 4, 20, 1),  # the turns before one that does not fit are dropped, too
        ([1, 50, 1], 4, 20, 2),
    ],
)
def test_a_history_has_the_last_turns_within_both_limits(lengths, turns, tokens, start):
    assert history_start(lengths, turns, tokens) == start


def test_the_end_of_a_long_turn_is_kept():
    tokenizer = dialogue_tokenizer()
    turn = "hi there, how are you? " * 20
    for limit in (8, 9, 20, 50):
        text = truncate_turn(tokenizer, turn, limit)
        assert turn.strip().endswith(text)
        assert 0 < len(tokenizer.encode(text, add_special_tokens=True)) <= limit
    assert truncate_turn(tokenizer, "hello", 50) == "hello"
    assert truncate_turn(tokenizer, "unseenletters", 8)

"""Escaping and shortening text for output."""

import json

import pytest

from qkv.runtime.text import (
    LONGEST_MESSAGE,
    aligned_numbers,
    escape_controls,
    escape_controls_in_json,
    message_line,
    shorten_middle,
    with_article,
)

CONTROLS = "\x00\x07\x1b\x7f\x85\x9b\n\r\t\u2028\u202a\u202e\u2066\u2069"


def test_control_characters_are_escaped_and_text_is_kept() -> None:
    text = "Größe\u00a0हिन्दी\u200dفارسی\u200c 👩\u200d👧 a\\b"
    assert escape_controls(text) == text
    assert escape_controls(CONTROLS).isprintable()
    assert escape_controls("a\n\x1b\tb", keep="\n\t") == "a\n\\x1b\tb"


def test_json_stays_the_same_value() -> None:
    escaped = escape_controls_in_json(json.dumps(CONTROLS, ensure_ascii=False))
    assert escaped.isprintable()
    assert json.loads(escaped) == CONTROLS


@pytest.mark.parametrize("longest", [9, 10])
def test_a_long_text_keeps_its_start_and_end(longest: int) -> None:
    assert shorten_middle("0123456789", 10) == "0123456789"
    short = shorten_middle("0123456789abcdef", longest)
    assert len(short) == longest
    assert short.startswith("0123")
    assert short.endswith("cdef")


def test_a_message_is_one_short_line() -> None:
    line = message_line("error: first\nsecond " + "\x1b" * 10_000 + " end")
    assert line.startswith("error: first second ")
    assert line.endswith(" end")
    assert line.isprintable()
    assert len(line) == LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([35.4, 37.0, 0.33], ["35.4", "37.0", "0.3"]),
        ([0.33, 0.363, 0.0021], ["0.330", "0.363", "0.002"]),
        ([-1234.5, 2.0, float("nan")], ["-1234", "2", "nan"]),
        ([0.0], ["0"]),
        ([], []),
    ],
)
def test_numbers_of_a_column_have_the_same_number_of_decimals(values: list[float], shown: list[str]) -> None:
    assert aligned_numbers(values) == shown


def test_the_article_is_that_of_the_name_as_it_is_read() -> None:
    with_an = ("RNNText", "NTM", "LSTM", "Elmo", "LSTMBaseline", "EncoderDecoder", "MLM")
    with_a = ("Transformer", "HAN", "Linformer", "MemoryNetwork", "GPT2", "SNAIL", "ViT", "Bert")
    assert [with_article(name) for name in (*with_an, *with_a)] == [
        *(f"an {name}" for name in with_an), *(f"a {name}" for name in with_a)
    ]  # fmt: skip

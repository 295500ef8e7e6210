"""Splitting raw text into words."""

import pytest

from qkv.tokenizers.words import split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("She doesn't like U.S. trains, at 10:30!", "She|does|n't|like|U.S.|trains|,|at|10:30|!"),
        ("नमस्ते दुनिया।", "नमस्ते|दुनिया|।"),  # vowel signs stay with their letters
        ("cafe\u0301 noir", "cafe\u0301|noir"),
        ("I \u2764\ufe0f you", "I|\u2764\ufe0f|you"),
        ("\U0001f469\u200d\U0001f4bb!", "\U0001f469\u200d\U0001f4bb|!"),
    ],
)
def test_words_keep_their_combining_characters(text, words):
    assert [text[begin:end] for begin, end in split_words(text)] == words.split("|")

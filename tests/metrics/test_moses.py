"""Moses tokenization on examples, and the word counts published for Multi30k."""

import gzip
import os
from pathlib import Path

import pytest

from qkv.metrics.text_metrics import moses_tokens


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("de", "Zwei Hunde spielen, im Schnee.", "zwei hunde spielen , im schnee ."),
        ("de", "Ein „Boston“-Schild – 5,300 Leute (alle)!", 'ein " boston " -schild - 5,300 leute ( alle ) !'),
        ("de", "Mike Tyson's Spiel", "mike tyson ' s spiel"),
        ("de", "der Spieler mit der Nummer 10.", "der spieler mit der nummer 10."),
        ("de", "im Jahr 2012.", "im jahr 2012 ."),
        ("de", "Bus der Linie A.", "bus der linie a."),
        ("en", "the player with number 10.", "the player with number 10 ."),
        ("en", "A man's dogs' toys don't move.", "a man 's dogs ' toys don 't move ."),
        ("fr", "L'eau d'un lac.", "l' eau d' un lac ."),
        ("en", "Come on ... now...", "come on ... now ..."),
        ("en", "J.P. Morgan e.g. this", "j.p. morgan e.g. this"),
        ("en", "He sits. she stands.", "he sits. she stands ."),  # without capitals, no sentence boundary is detected
        ("", "A well-known T-shirt.", "a well-known t-shirt ."),
        ("de", "ein Ball von ca. 120 cm", "ein ball von ca. 120 cm"),
        ("en", 'the number "93".', 'the number " 93 . "'),  # American punctuation
        ("en", ".", "."),
        ("en", "", ""),
    ],
)
def test_texts_are_tokenized_like_moses(language: str, text: str, words: str) -> None:
    assert moses_tokens(text.lower(), language) == words.split()


@pytest.mark.parametrize(
    ("split", "language", "count"),
    [
        ("test_2016_flickr", "en", 12968),
        ("test_2016_flickr", "de", 12103),  # also the reference length in Wu et al. (2021)
        ("test_2017_flickr", "en", 11376),
        ("test_2017_flickr", "de", 10758),
        ("train", "de", 360706),
        ("val", "en", 13308),
        ("val", "de", 12828),
    ],
)
def test_multi30k_word_counts_match_the_published_ones(split: str, language: str, count: int) -> None:
    path = Path(os.environ.get("QKV_DATA", "no-data")) / "multi30k" / f"{split}.{language}.gz"
    if not path.exists():
        pytest.skip("needs Multi30k under QKV_DATA")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert sum(len(moses_tokens(line.lower(), language)) for line in lines) == count

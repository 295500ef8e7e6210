"""ABC notation: pitches, durations and repeats of small tunes, worked out by hand."""

import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from qkv.datasets.formats.abc_notation import parse_tune
from qkv.errors import InputError

C, D, E, F, G, A, B = 60, 62, 64, 65, 67, 69, 71


def tune(music: str, header: str = "L:1/4\nK:C"):
    return parse_tune(f"X:1\nT:Test\n{header}\n{music}")


def pitches(music: str, header: str = "L:1/4\nK:C") -> list[int]:
    return [note.pitch for note in tune(music, header).notes]


def lengths(music: str, header: str = "L:1/4\nK:C") -> list[Fraction]:
    return [4 * note.duration for note in tune(music, header).notes]  # in quarter notes


@pytest.mark.parametrize(
    ("music", "expected"),
    [
        ("C E G c e c' C, C,,", [C, E, G, C + 12, E + 12, C + 24, C - 12, C - 24]),
        ("^F F =F F | F", [F + 1, F + 1, F, F, F]),  # until the bar line
        ("_B b B", [B - 1, B + 12, B - 1]),  # in its octave
        ("^^C __E", [C + 2, E - 2]),
        ('"Am"A {cd}e ~c !trill!d (ef) .g', [A, E + 12, C + 12, D + 12, E + 12, F + 12, G + 12]),
        ("C \\", [C]),
        ("C % comment", [C]),
        ("C [K:G] F", [C, F + 1]),
    ],
)
def test_pitches(music, expected):
    assert pitches(music) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("C", [C, F, B]),
        ("G", [C, F + 1, B]),
        ("D", [C + 1, F + 1, B]),
        ("F", [C, F, B - 1]),
        ("Am", [C, F, B]),
        ("Em", [C, F + 1, B]),
        ("Gm", [C, F, B - 1]),
        ("Bb", [C, F, B - 1]),
        ("F#", [C + 1, F + 1, B]),
        ("D mixolydian", [C, F + 1, B]),
        ("Edor", [C + 1, F + 1, B]),
        ("none", [C, F, B]),
    ],
)
def test_keys(key, expected):
    assert pitches("C F B", f"K:{key}") == expected


@pytest.mark.parametrize(
    ("music", "expected"),
    [
        ("C C2 C/2 C/ C// C3/2 C/4", ["1", "2", "1/2", "1/2", "1/4", "3/2", "1/4"]),
        ("(3CDE F", ["2/3", "2/3", "2/3", "1"]),
        ("(3C/D/E/", ["1/3", "1/3", "1/3"]),
        ("(4CDEF", ["3/4"] * 4),
        ("(3:2:2CD E", ["2/3", "2/3", "1"]),
        ("C>D E<F", ["3/2", "1/2", "1/2", "3/2"]),
        ("C>>D", ["7/4", "1/4"]),
        ("C-C D", ["2", "1"]),
        ("C-|C2 C", ["3", "1"]),
        ("C-D", ["1", "1"]),  # other notes are not joined
        ("[CEG]2", ["2", "2", "2"]),
        ("[C2E2]", ["2", "2"]),
        ("[C-E-][CE]", ["2", "2"]),
    ],
)
def test_durations(music, expected):
    assert lengths(music) == [Fraction(text) for text in expected]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("M:4/4\nK:C", "1/2"),
        ("M:6/8\nK:C", "1/2"),
        ("M:2/4\nK:C", "1/4"),
        ("M:C|\nK:C", "1/2"),
        ("M:2/4\nL:1/8\nK:C", "1/2"),
    ],
)
def test_the_default_length_depends_on_the_meter(header, expected):
    assert lengths("C", header) == [Fraction(expected)]


def test_rests_and_chords_move_the_start():
    notes = tune("C z2 [EG] D").notes
    assert [(4 * note.start, note.pitch) for note in notes] == [(0, C), (3, E), (3, G), (4, D)]


@pytest.mark.parametrize(
    ("music", "expected"),
    [
        ("|:C D:|E", "CDCDE"),
        ("C D:|E|", "CDCDE"),  # from the beginning
        ("C||D E:|F", "CDEDEF"),  # from the double bar
        ("C|:D:|:E:|F", "CDDEEF"),
        ("C::D:|", "CCDD"),
        ("|:C|[1 D:|[2 E||F", "CDCEF"),
        ("|:C|1 D:|2 E|F", "CDCEF"),
        ("|:C[1 D:|[2 E:|[3 F|]G", "CDCECFG"),
        ("|:C:|||:D:|", "CCDD"),
        ("|:C|D||", "CD"),
    ],
)
def test_repeats(music, expected):
    names = {C: "C", D: "D", E: "E", F: "F", G: "G"}
    assert "".join(names[pitch] for pitch in pitches(music)) == expected


def test_tempo_and_title():
    parsed = tune("C4", "Q:1/4=180\nL:1/4\nK:C")
    assert parsed.title == "Test"
    assert parsed.duration == pytest.approx(4 * 60 / 180)
    assert tune("C4").duration == pytest.approx(2.0)


def test_a_tune_ends_with_an_empty_line():
    assert pitches("C D\n\nX:2\nK:G\nF") == [C, D]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no notes"),
        ("X:1\nK:C\nz4|", "no notes"),
        ("X:1\nT:no key\nCDE", "line 3 of the tune: a tune needs a key"),
        ("X:1\nK:H\nC", "line 2 of the tune: K:H is not a key"),
        ("X:1\nK:B#\nC", "seven"),
        ("X:1\nM:4-4\nK:C\nC", "M:4-4 is not a fraction"),
        ("X:1\nL:1/0\nK:C\nC", "L:1/0 is not a fraction"),
        ("X:1\nQ:fast\nK:C\nC", "Q:fast is not a tempo"),
        ("X:1\nK:C\nC D ?", "line 3 of the tune: '\\?' is not ABC"),
        ("To be, or not to be", "needs a key"),
        ("X:1\nK:C\n[CH]", "not ABC|not a chord"),
        ("X:1\nK:C\n[]", "not a chord"),
        ("X:1\nK:C\n-C", "no note before"),
        ("X:1\nK:C\n>C", "no note before"),
        ("X:1\nK:C\nC/0", "divides by zero"),
        ("X:1\nK:C\nC0", "out of range"),
        ("X:1\nK:C\nC9999", "out of range"),
        ("X:1\nK:C\nC,,,,,,", "out of range"),
        ("X:1\nK:C\n(1C", "not a tuplet"),
        ("X:1\nK:C\n|:" + "C" * 9000 + ":| " * 9, "more than 20,000"),
        ("X:1\nK:C\n" + "C" * 100_000, "characters"),
    ],
)
def test_bad_abc_is_an_error(text, words):
    with pytest.raises(InputError, match=words):
        parse_tune(text)


@pytest.mark.corpus
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")
def test_the_tunes_of_the_collection_are_read():
    folder = Path(os.environ["QKV_DATA"]) / "nottingham_abc"
    texts = [text for path in sorted(folder.glob("*.abc")) for text in re.split(r"\n\s*\n(?=X:)", path.read_text())]
    damaged = "[e2c2(3A/2B/2c/2|"  # a chord without its last bracket, in one tune
    durations = [parse_tune(text).duration for text in texts if damaged not in text]
    assert (len(texts), len(durations)) == (1031, 1030)
    assert 5 < min(durations) < max(durations) < 300

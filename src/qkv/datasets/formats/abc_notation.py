"""Tunes in ABC notation, as in the Nottingham collection: parse a tune into notes with start, duration and pitch.

Supported: the fields K, L, M and Q, in the header and between lines or as [K:G]; notes, rests and chords with
accidentals, octaves and lengths; ties, triplets and other tuplets, broken rhythm; bar lines, repeats and their endings.
Chord symbols ("Am"), grace notes, slurs and ornaments are not played.
(https://abcnotation.com/wiki/abc:standard:v2.1)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from qkv.errors import InputError

MAX_CHARACTERS = 100_000
MAX_NOTES = 20_000  # after the repeats
MAX_WHOLE_NOTES = 1000  # of a note or a tune: 33 minutes at the default tempo

SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}  # above C
FIFTHS = "FCGDAEB"  # letters in the order in which sharps are added
ACCIDENTALS = {"": None, "^^": 2, "^": 1, "=": 0, "_": -1, "__": -2}
MODES = {"": 0, "maj": 0, "ion": 0, "mix": -1, "dor": -2, "m": -3, "min": -3, "aeo": -3, "phr": -4, "loc": -5, "lyd": 1}
TUPLETS = {
    2: 3,
    3: 2,
    4: 3,
    6: 2,
    8: 3,
}  # p notes in the time of q; others: in the time of 2, or of 3 in 6/8, 9/8, 12/8
MIDDLE_C = 60  # as a MIDI number

FIELD = re.compile(r"([A-Za-z]):(?![|:])(.*)")
LENGTH = r"\d{0,4}(?://+|/\d{0,4})?"
PITCH = r"(?P<accidental>\^{1,2}|_{1,2}|=)?(?P<letter>[A-Ga-g])(?P<octave>[,']{0,8})"
TOKEN = re.compile(
    rf"""(?P<skipped>\s+|"[^"]*"|![^!]*!|\{{[^}}]*\}}|[~.)\\`+]|y\d*)
    |\[(?P<inline>[A-Za-z]:[^\]]*)\]
    |(?P<bar>[|:\]]*\|[|:\]]*|::+)(?P<volta>\d)?
    |\[(?P<ending>\d)
    |(?P<chord>\[[^\]|:]*\])(?P<chord_length>{LENGTH})
    |\((?P<tuplet>\d)(?P<ratio>:\d?(?::\d?)?)?
    |(?P<slur>\()
    |(?P<tie>-)
    |(?P<broken>>{{1,3}}|<{{1,3}})
    |(?P<rest>[zx])(?P<rest_length>{LENGTH})
    |{PITCH}(?P<note_length>{LENGTH})""",
    re.VERBOSE | re.ASCII,
)
CHORD_NOTE = re.compile(rf"{PITCH}(?P<length>{LENGTH})", re.ASCII)


@dataclass(frozen=True)
class Chord:
    """Notes that sound together; a rest has none."""

    pitches: tuple[int, ...]  # MIDI numbers: 69 is the A of 440 Hz
    duration: Fraction  # in whole notes
    tied: bool = False  # to the same notes of the next chord


@dataclass(frozen=True)
class Note:
    """A note of a tune."""

    start: Fraction  # in whole notes
    duration: Fraction  # in whole notes
    pitch: int  # MIDI number


@dataclass(frozen=True)
class Tune:
    """The notes of a tune in the order in which they are played."""

    title: str
    notes: tuple[Note, ...]
    whole_notes_per_minute: Fraction = Fraction(30)

    @property
    def seconds_per_whole_note(self) -> float:
        return float(60 / self.whole_notes_per_minute)

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return (
            max((float(note.start + note.duration) for note in self.notes), default=0.0) * self.seconds_per_whole_note
        )


def parse_tune(text: str) -> Tune:
    """Parse the first tune of a text; raise InputError, with the line, if it is not ABC."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the tune has {len(text):,} characters, at most {MAX_CHARACTERS:,} are supported")
    parser = _Parser()
    has_key = False
    for number, line in enumerate(text.strip("\n").split("\n"), start=1):
        line = line.split("%")[0].rstrip()
        if not line.strip():
            break  # the end of the tune
        try:
            if (field := FIELD.match(line)) is not None:
                has_key |= field[1] == "K"
                parser.read_field(field[1], field[2].strip())
            elif not has_key:
                raise InputError("a tune needs a key, such as K:G, before its first note")
            else:
                parser.read_music(line)
        except InputError as error:
            raise InputError(f"line {number} of the tune: {error}") from None
    notes = tuple(_notes(_expand(parser.items)))
    if not notes:
        raise InputError("the tune has no notes")
    return Tune(parser.title, notes, parser.tempo)


class _Parser:
    """Collects the chords, bar lines (as strings) and numbers of endings of a tune."""

    def __init__(self) -> None:
        self.items: list[Chord | str | int] = []
        self.title = ""
        self.tempo = Fraction(30)  # 120 quarter notes per minute
        self._meter = Fraction(1)
        self._compound = False  # 6/8, 9/8, 12/8
        self._unit: Fraction | None = None
        self._signature: dict[str, int] = {}  # accidentals of the key
        self._accidentals: dict[tuple[str, int], int] = {}  # of this bar, by letter and octave
        self._tuplet: list[Fraction] = []  # factors of the next notes
        self._next_factor = Fraction(1)  # of the note after > or <
        self._last = -1  # index of the last chord

    @property
    def unit(self) -> Fraction:
        """Default length of a note."""
        return self._unit or (Fraction(1, 16) if self._meter < Fraction(3, 4) else Fraction(1, 8))

    def read_field(self, name: str, value: str) -> None:
        """Read a field; those that do not affect the sound are ignored."""
        match name:
            case "T":
                self.title = self.title or value
            case "M" if value not in ("none", ""):
                beats = {"C": "4/4", "C|": "2/2"}.get(value, value)
                self._meter = _fraction(beats, f"M:{value}")
                self._compound = beats in ("6/8", "9/8", "12/8")
            case "L":
                self._unit = _fraction(value, f"L:{value}")
            case "Q":
                self.tempo = self._read_tempo(value)
            case "K":
                self._signature, self._accidentals = _signature(value), {}

    def _read_tempo(self, value: str) -> Fraction:
        match = re.fullmatch(r'(?:"[^"]*")?\s*(?:(\d{1,3}/\d{1,3})\s*=\s*)?(\d{1,3})\s*(?:"[^"]*")?', value, re.ASCII)
        if match is None or not int(match[2]):
            raise InputError(f"Q:{value[:30]} is not a tempo, such as Q:1/4=120")
        return int(match[2]) * (Fraction(1, 4) if match[1] is None else _fraction(match[1], f"Q:{value}"))

    def read_music(self, line: str) -> None:
        position = 0
        while position < len(line):
            token = TOKEN.match(line, position)
            if token is None:
                raise InputError(f"{line[position : position + 10]!r} is not ABC notation")
            self._read_token(token)
            position = token.end()

    def _read_token(self, token: re.Match[str]) -> None:
        if token["inline"] is not None:
            self.read_field(token["inline"][0], token["inline"][2:].strip())
        elif token["bar"] is not None:
            self._accidentals = {}
            self.items.append(token["bar"])
            if token["volta"] is not None:
                self.items.append(int(token["volta"]))
        elif token["ending"] is not None:
            self.items.append(int(token["ending"]))
        elif token["tuplet"] is not None:
            self._read_tuplet(token)
        elif token["tie"] is not None:
            self.items[self._last] = replace(self._last_chord(), tied=True)
        elif token["broken"] is not None:
            self._read_broken(token["broken"])
        elif token["chord"] is not None:
            self._read_chord(token["chord"][1:-1], token["chord_length"])
        elif token["rest"] is not None:
            self._add((), _length(token["rest_length"]))
        elif token["letter"] is not None:
            self._add((self._pitch(token),), _length(token["note_length"]))

    def _read_tuplet(self, token: re.Match[str]) -> None:
        count = int(token["tuplet"])
        time, notes = [*(part for part in (token["ratio"] or "").split(":")[1:]), "", ""][:2]
        if count < 2:
            raise InputError(f"{token[0]} is not a tuplet: write (3abc for a triplet")
        factor = Fraction(int(time or TUPLETS.get(count, 3 if self._compound else 2)), count)
        self._tuplet = [factor] * int(notes or count)

    def _read_broken(self, signs: str) -> None:
        shorter = Fraction(1, 2 ** len(signs))
        factors = (2 - shorter, shorter) if signs[0] == ">" else (shorter, 2 - shorter)
        last = self._last_chord()
        self.items[self._last] = replace(last, duration=last.duration * factors[0])
        self._next_factor = factors[1]

    def _read_chord(self, content: str, length: str) -> None:
        plain = re.sub(r"[+\s-]", "", content)
        notes = list(CHORD_NOTE.finditer(plain))
        if not notes or sum(len(note[0]) for note in notes) != len(plain):
            raise InputError(f"[{content[:20]}] is not a chord")
        pitches = tuple(self._pitch(note) for note in notes)
        self._add(pitches, _length(notes[0]["length"]) * _length(length), tied="-" in content)

    def _add(self, pitches: tuple[int, ...], length: Fraction, tied: bool = False) -> None:
        factor = self._tuplet.pop() if self._tuplet else Fraction(1)
        duration = length * self.unit * factor * self._next_factor
        self._next_factor = Fraction(1)
        if not 0 < duration <= MAX_WHOLE_NOTES:
            raise InputError(f"a note of {float(duration):g} whole notes is out of range")
        self._last = len(self.items)
        self.items.append(Chord(pitches, duration, tied))

    def _pitch(self, note: re.Match[str]) -> int:
        letter = note["letter"].upper()
        octave = int(note["letter"].islower()) + note["octave"].count("'") - note["octave"].count(",")
        key = (letter, octave)
        if note["accidental"]:
            self._accidentals[key] = ACCIDENTALS[note["accidental"]] or 0
        accidental = self._accidentals.get(key, self._signature.get(letter, 0))
        pitch = MIDDLE_C + 12 * octave + SEMITONES[letter] + accidental
        if not 0 <= pitch < 128:
            raise InputError(f"the note {note['letter']}{note['octave']} is out of range")
        return pitch

    def _last_chord(self) -> Chord:
        chord = self.items[self._last] if self._last >= 0 else None
        if not isinstance(chord, Chord):
            raise InputError("there is no note before this sign")
        return chord


def _expand(items: list[Chord | str | int]) -> list[Chord]:
    """Play the repeats: `|: A :|` is A A, and `|: A [1 B :| [2 C ||` is A B A C."""
    played: list[Chord] = []
    section: list[Chord] = []  # since the last repeat sign or double bar
    ending: list[Chord] | None = None  # the current one of the section
    was_repeated = False  # the section, which another ending can still follow

    def end_section() -> None:
        nonlocal section, ending, was_repeated
        if ending is not None or not was_repeated:
            played.extend([*section, *(ending or ())])
        section, ending, was_repeated = [], None, False

    for item in items:
        if isinstance(item, int):
            if ending:
                played.extend([*section, *ending])
            ending = []
        elif isinstance(item, Chord):
            if was_repeated and ending is None:
                end_section()
            (section if ending is None else ending).append(item)
        else:
            if item.startswith(":"):
                played.extend([*section, *(section if ending is None else ending)])
                ending, was_repeated = None, True
            is_double = len(item) > 1 and ":" not in item
            if item.endswith(":") or (is_double and (ending is not None or not was_repeated)):
                end_section()
        if len(played) > MAX_NOTES:
            raise InputError(f"the tune has more than {MAX_NOTES:,} notes with its repeats")
    end_section()
    return played


def _notes(chords: list[Chord]) -> Iterator[Note]:
    """Yield the notes with their start; tied ones are joined."""
    start, held = Fraction(0), dict[int, Note]()  # notes tied to the next chord, by pitch
    for chord in chords:
        joined = dict[int, Note]()
        for pitch in dict.fromkeys(chord.pitches):
            note = held.pop(pitch, None) or Note(start, Fraction(0), pitch)
            joined[pitch] = replace(note, duration=note.duration + chord.duration)
        yield from held.values()
        held = joined if chord.tied else {}
        if not chord.tied:
            yield from joined.values()
        start += chord.duration
        if start > MAX_WHOLE_NOTES:
            raise InputError(f"the tune is longer than {MAX_WHOLE_NOTES:,} whole notes")
    yield from held.values()


def _fraction(text: str, where: str) -> Fraction:
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text, re.ASCII)
    if match is None or not int(match[1]) or not int(match[2]):
        raise InputError(f"{where[:30]} is not a fraction, such as 3/4")
    return Fraction(int(match[1]), int(match[2]))


def _length(text: str) -> Fraction:
    """Return the factor of a length: 3/2 is 3/2, /2 and / are 1/2, // is 1/4."""
    numerator, slash, denominator = text.partition("/")
    divisor = 2 ** (1 + denominator.count("/")) if not denominator.strip("/") else int(denominator)
    if slash and not divisor:
        raise InputError(f"the length {text} divides by zero")
    return Fraction(int(numerator or 1), divisor if slash else 1)


def _signature(value: str) -> dict[str, int]:
    """Return the accidental of each letter in a key, such as G, Am, Bb or D mixolydian."""
    if value in ("", "none"):
        return {}
    match = re.match(r"([A-G])([#b]?)\s*([A-Za-z]*)", value, re.ASCII)
    mode = None if match is None else match[3].lower()[:3]
    if match is None or mode not in MODES:
        raise InputError(f"K:{value[:30]} is not a key, such as K:G or K:Am")
    sharps = FIFTHS.index(match[1]) - 1 + {"#": 7, "b": -7, "": 0}[match[2]] + MODES[mode]
    if not -7 <= sharps <= 7:
        raise InputError(f"K:{value[:30]} has more than seven accidentals")
    letters = FIFTHS[:sharps] if sharps > 0 else FIFTHS[::-1][:-sharps]
    return dict.fromkeys(letters, 1 if sharps > 0 else -1)

"""Dates as people write them, to ISO 8601: a task that needs no download, and whose true alignment is known.

    Donnerstag, 5. März 2026   the fifth of March 2026   jeu. 5/3/26   5 марта 2026 г.   ->   2026-03-05

A text never has two readings. Years run from 1950 to 2049, so that two digits name one year. Dots are day.month.year.
Digits with slashes or dashes, which some read month first and others day first, are written only where one reading is
a date, or where one reading falls on the weekday beside it; the others are left out.

The gold alignment points each digit of the target at the year, month or day of the source, as far as its letters and
digits go: "5th", "1er", "twenty-first", but "5" of "5.", "26" of "'26" and "mar" of "mar."; the dashes have none.

The split of a date hangs on the date alone: no seed brings a date of the test split into training.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from itertools import islice
from string import Formatter
from typing import Final, Literal, get_args

from qkv.data import calendar_words as words
from qkv.data.calendar_words import Language
from qkv.data.pair import Pair
from qkv.errors import InputError

Split = Literal["train", "valid", "test"]
Span = tuple[int, int]

FIRST_DAY: Final = date(1950, 1, 1)
LAST_DAY: Final = date(2049, 12, 31)

_VOCABULARY: Final[dict[str, Language]] = {
    "en": words.ENGLISH,
    "de": words.GERMAN,
    "fr": words.FRENCH,
    "es": words.SPANISH,
    "it": words.ITALIAN,
    "pt": words.PORTUGUESE,
    "nl": words.DUTCH,
    "ru": words.RUSSIAN,
    "pl": words.POLISH,
    "sv": words.SWEDISH,
    "zxx": words.DIGITS,  # ISO 639's code for "no linguistic content"
}

LANGUAGES: Final[dict[str, str]] = {code: entry.name for code, entry in _VOCABULARY.items() if code != "zxx"}

_LOWER_SHARE: Final = 0.1
_UPPER_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a date: a language (its ISO 639 code; "zxx" for digits alone) and one of its templates."""

    language: str
    template: str

    def write(self, day: date) -> Pair | None:
        """Write `day` this way, or None where the text would have a second reading."""
        language = _VOCABULARY[self.language]
        text = ""
        spans: dict[str, Span] = {}
        for literal, field in _pieces(self.template):
            text += literal
            if field:
                kind, spell = _FIELDS[field]
                start = len(text)
                text += spell(language, day)
                # The dot of an abbreviation is no part of the span, just as that of "5." in a template is not.
                spans[kind] = (start, len(text) - text.endswith("."))
        if _is_order_open(self.template):
            weekday = day.weekday() if "weekday" in spans else None
            if _readings(text, weekday) != {day}:
                return None
        gold = (*[spans["year"]] * 4, None, *[spans["month"]] * 2, None, *[spans["day"]] * 2)
        return Pair(text, day.isoformat(), gold)


FORMATS: Final = tuple(Format(code, template) for code, entry in _VOCABULARY.items() for template in entry.templates)


def generate(size: int, *, split: Split, seed: int = 0) -> list[Pair]:
    """Write `size` dates of one split; a smaller size gives the beginning of the same list.

    Every date of the split comes once before any comes again, in an order and in formats drawn from the seed.
    """
    if split not in get_args(Split):
        raise InputError(f"dates: unknown split {split!r}; there are {', '.join(get_args(Split))}")
    if size < 0:
        raise InputError(f"dates: size must be 0 or more, not {size}")
    return list(islice(_stream(split, seed), size))


def split_of(day: date) -> Split:
    """The one split that a date belongs to: of ten dates about eight train, one validates, one tests."""
    bucket = int.from_bytes(hashlib.sha256(day.isoformat().encode()).digest()[:8], "big") % 10
    return "test" if bucket == 0 else "valid" if bucket == 1 else "train"


def renderings(day: date) -> Iterator[tuple[Format, Pair]]:
    """Every text that `generate` may write for a date, before it changes the case of some."""
    for form in FORMATS:
        pair = form.write(day)
        if pair is not None:
            yield form, pair


def _stream(split: Split, seed: int) -> Iterator[Pair]:
    # Of the generator's methods only random() is promised to stay the same in later versions of Python.
    draw = random.Random(f"qkv dates {split} {seed}").random
    while True:
        for day in sorted(_days(split), key=lambda _: draw()):
            pair = None
            while pair is None:  # it ends: most formats fit any date
                pair = FORMATS[int(draw() * len(FORMATS))].write(day)
            yield _vary_case(pair, draw())


def _vary_case(pair: Pair, chance: float) -> Pair:
    if chance < _LOWER_SHARE:
        return Pair(pair.source.lower(), pair.target, pair.gold)
    if chance < _LOWER_SHARE + _UPPER_SHARE:
        return Pair(pair.source.upper(), pair.target, pair.gold)
    return pair


@cache
def _days(split: Split) -> tuple[date, ...]:
    every_day = (FIRST_DAY + timedelta(days) for days in range((LAST_DAY - FIRST_DAY).days + 1))
    return tuple(day for day in every_day if split_of(day) == split)


# The fields of a template: the part of the date that a field tells, and how it is spelled.
_FIELDS: Final[dict[str, tuple[str, Callable[[Language, date], str]]]] = {
    "weekday": ("weekday", lambda language, day: language.weekdays[day.weekday()]),
    "dow": ("weekday", lambda language, day: language.weekdays_short[day.weekday()]),
    "month": ("month", lambda language, day: language.months[day.month - 1]),
    "mon": ("month", lambda language, day: language.months_short[day.month - 1]),
    "m": ("month", lambda language, day: str(day.month)),
    "mm": ("month", lambda language, day: f"{day.month:02}"),
    "day": ("day", lambda language, day: language.first if day.day == 1 else str(day.day)),
    "d": ("day", lambda language, day: str(day.day)),
    "dd": ("day", lambda language, day: f"{day.day:02}"),
    "ordinal": ("day", lambda language, day: language.ordinals[day.day - 1]),
    "spelled": ("day", lambda language, day: language.spelled[day.day - 1]),
    "year": ("year", lambda language, day: str(day.year)),
    "yy": ("year", lambda language, day: f"{day.year % 100:02}"),
}


@cache
def _pieces(template: str) -> tuple[tuple[str, str | None], ...]:
    """The literal texts of a template, each with the field that follows it."""
    return tuple((literal, field) for literal, field, _, _ in Formatter().parse(template))


@cache
def _is_order_open(template: str) -> bool:
    """Whether a template has day and month as digits around a slash or dash, with no year of four digits before."""
    return re.search(r"(?<!\{year\}[/-])\{(d|dd|m|mm)\}[/-]\{(d|dd|m|mm)\}", template) is not None


def _readings(text: str, weekday: int | None) -> set[date]:
    """The dates that the three numbers of a text may mean to someone, on the weekday if one is given."""
    first, second, last = re.findall(r"\d+", text)
    candidates = [(last, first, second), (last, second, first)]
    if len(first) == len(last) == 2:  # 25/12/26: some write the year first
        candidates.append((first, second, last))
    numbers = {(_full_year(year), int(month), int(day)) for year, month, day in candidates}
    days = {date(*ymd) for ymd in numbers if _is_date(*ymd)}
    return {day for day in days if weekday is None or day.weekday() == weekday}


def _full_year(digits: str) -> int:
    if len(digits) == 4:
        return int(digits)
    return int(digits) + (1900 if int(digits) >= FIRST_DAY.year % 100 else 2000)


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True

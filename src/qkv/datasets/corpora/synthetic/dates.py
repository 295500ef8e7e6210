"""Dates in natural language to ISO 8601: a synthetic task with known alignment.

    Donnerstag, 5. März 2026   the fifth of March 2026   jeu. 5/3/26   5 марта 2026 г.   ->   2026-03-05

No text is ambiguous. Years are 1950 to 2049, so that two digits determine the year. Dots mean day.month.year. Digits
with slashes or dashes, which can be month first or day first, are generated only if exactly one reading is a valid
date, or matches the weekday in the text.

The gold alignment maps each digit of the target to the year, month or day of the source, without punctuation: "5th",
"1er", "twenty-first", but "5" of "5.", "26" of "'26" and "mar" of "mar."; the dashes are not aligned.

The split depends only on the date: no seed moves a date of the test split into training.
"""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from itertools import islice
from string import Formatter
from typing import Final

from qkv.datasets.columns import EXACT, Column
from qkv.datasets.corpora.synthetic import calendar_words as words
from qkv.datasets.corpora.synthetic.calendar_words import Language
from qkv.datasets.dataset import GENERATED, PairConfig, PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.text_files import Split, split_of
from qkv.registry import register

TRAIN_SIZE, HELD_OUT = 20_000, 2000  # examples of the training split, and of valid and test
Span = tuple[int, int]

FIRST_DAY: Final = date(1950, 1, 1)
LAST_DAY: Final = date(2049, 12, 31)

_LANGUAGES: Final[dict[str, Language]] = {
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

LANGUAGES: Final[dict[str, str]] = {code: entry.name for code, entry in _LANGUAGES.items() if code != "zxx"}

_LOWER_SHARE: Final = 0.1
_UPPER_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Format:
    """A date format: a language (ISO 639 code; "zxx" for digits only) and one of its templates."""

    language: str
    template: str

    def render(self, day: date) -> Pair | None:
        """Format a date, or return None if the text would be ambiguous."""
        language = _LANGUAGES[self.language]
        text = ""
        spans: dict[str, Span] = {}
        for literal, field in _parse_template(self.template):
            text += literal
            if field:
                kind, spell = _FIELDS[field]
                start = len(text)
                text += spell(language, day)
                # The span excludes the dot of an abbreviation, like that of "5." in a template.
                spans[kind] = (start, len(text) - text.endswith("."))
        if _has_ambiguous_order(self.template):
            weekday = day.weekday() if "weekday" in spans else None
            if _readings(text, weekday) != {day}:
                return None
        gold = (*[spans["year"]] * 4, None, *[spans["month"]] * 2, None, *[spans["day"]] * 2)
        return Pair(text, day.isoformat(), gold)


FORMATS: Final = tuple(Format(code, template) for code, entry in _LANGUAGES.items() for template in entry.templates)


def generate(size: int, *, split: Split, seed: int = 0) -> list[Pair]:
    """Generate `size` dates of one split; a smaller size gives a prefix of the same list.

    Every date of the split occurs once before any is repeated, in random order and formats determined by the seed.
    """
    return list(islice(_stream(split, seed), size))


def _stream(split: Split, seed: int) -> Iterator[Pair]:
    # random() is the only method that is guaranteed to be stable across Python versions.
    uniform = random.Random(f"qkv dates {split} {seed}").random
    while True:
        for day in sorted(_days(split), key=lambda _: uniform()):
            pair = None
            while pair is None:  # terminates: most formats are unambiguous for any date
                pair = FORMATS[int(uniform() * len(FORMATS))].render(day)
            yield _vary_case(pair, uniform())


def _vary_case(pair: Pair, uniform: float) -> Pair:
    if uniform < _LOWER_SHARE:
        return Pair(pair.source.lower(), pair.target, pair.gold)
    if uniform < _LOWER_SHARE + _UPPER_SHARE:
        return Pair(pair.source.upper(), pair.target, pair.gold)
    return pair


@cache
def _days(split: Split) -> tuple[date, ...]:
    every_day = (FIRST_DAY + timedelta(days) for days in range((LAST_DAY - FIRST_DAY).days + 1))
    return tuple(day for day in every_day if split_of(day.isoformat(), hashed_bytes=8) == split)


# The fields of a template: the component of the date, and its formatter.
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
def _parse_template(template: str) -> tuple[tuple[str, str | None], ...]:
    """Return the literal texts of a template, each with the field that follows it."""
    return tuple((literal, field) for literal, field, _, _ in Formatter().parse(template))


@cache
def _has_ambiguous_order(template: str) -> bool:
    """Return whether day and month are digits around a slash or dash, not preceded by a four-digit year."""
    return re.search(r"(?<!\{year\}[/-])\{(d|dd|m|mm)\}[/-]\{(d|dd|m|mm)\}", template) is not None


def _readings(text: str, weekday: int | None) -> set[date]:
    """Return all dates that the three numbers of a text can mean, restricted to the weekday if given."""
    first, second, last = re.findall(r"\d+", text)
    candidates = [(last, first, second), (last, second, first)]
    if len(first) == len(last) == 2:  # 25/12/26: the year may come first
        candidates.append((first, second, last))
    days = set()
    for year, month, day in candidates:
        with suppress(ValueError):  # not a date
            days.add(date(_full_year(year), int(month), int(day)))
    return {day for day in days if weekday is None or day.weekday() == weekday}


def _full_year(digits: str) -> int:
    if len(digits) == 4:
        return int(digits)
    return int(digits) + (1900 if int(digits) >= FIRST_DAY.year % 100 else 2000)


@register("dataset", "dates")
class Dates(PairConfig):
    """Dates in natural language to ISO 8601."""

    summary = f"dates in natural language, in {len(LANGUAGES)} languages, to ISO 8601 (synthetic)"
    license = GENERATED
    columns = (
        EXACT,
        Column("cer", "character error rate, %", 100, higher_is_better=False),
        Column("alignment", "alignment accuracy, %", 100),
    )

    def read(self) -> PairDataset:
        sizes: dict[Split, int] = {"train": self.size or TRAIN_SIZE, "valid": HELD_OUT, "test": HELD_OUT}
        return PairDataset({split: generate(size, split=split) for split, size in sizes.items()})

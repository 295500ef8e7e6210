"""Tests of the dates dataset: texts, unambiguity, splits and gold alignment."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import product
from typing import get_args

import pytest

from qkv.datasets.corpora.synthetic.dates import (
    FIRST_DAY,
    FORMATS,
    LANGUAGES,
    LAST_DAY,
    Format,
    generate,
)
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.text_files import Split
from qkv.datasets.formats.text_files import split_of as split_of_text

SPLITS = get_args(Split)

# Repeated here, by stems and in no order of languages, so that a slip in the tables of qkv shows.
MONTH_STEMS = (
    "jan gen ene янв sty",
    "feb fev fév фев lut",
    "mar mär maa mrt мар",
    "apr abr avr апр kwi",
    "may mai mag mei maj мая",
    "jun juin giu июн cze",
    "jul juil lug июл lip",
    "aug ago aoû авг sie",
    "sep set сен wrz",
    "oct okt ott out окт paź",
    "nov ноя lis",
    "dec dez dic déc дек gru",
)
WEEKDAY_WORDS = (  # Sunday first, as the weekday formula below counts
    "sunday sun sonntag so dimanche dim domingo dom domenica zondag zo воскресенье вс niedziela niedz söndag sön",
    "monday mon montag mo lundi lun lunes lunedì segunda-feira seg maandag ma понедельник пн poniedziałek pon "
    "måndag mån",
    "tuesday tue dienstag di mardi mar martes martedì terça-feira ter dinsdag вторник вт wtorek wt tisdag tis",
    "wednesday wed mittwoch mi mercredi mer miércoles mié mercoledì quarta-feira qua woensdag wo среда ср środa śr "
    "onsdag ons",
    "thursday thu donnerstag do jeudi jeu jueves jue giovedì gio quinta-feira qui donderdag четверг чт czwartek czw "
    "torsdag tors",
    "friday fri freitag fr vendredi ven viernes vie venerdì sexta-feira sex vrijdag vr пятница пт piątek pt fredag fre",
    "saturday sat samstag sa samedi sam sábado sáb sabato sab zaterdag za суббота сб sobota sob lördag lör",
)
UNITS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
TEENS = ("thir", "four", "fif", "six", "seven", "eigh", "nine")
SPELLED_DAYS = (
    *UNITS,
    "tenth",
    "eleventh",
    "twelfth",
    *(f"{stem}teenth" for stem in TEENS),
    "twentieth",
    *(f"twenty-{unit}" for unit in UNITS),
    "thirtieth",
    "thirty-first",
)


def spans_of(pair: Pair) -> tuple[str, str, str]:
    """Return the year, month and day of the source according to the gold alignment."""
    assert pair.gold is not None
    year, month, day = pair.gold[0], pair.gold[5], pair.gold[8]
    assert year is not None
    assert month is not None
    assert day is not None
    return pair.source[slice(*year)], pair.source[slice(*month)], pair.source[slice(*day)]


def month_number(text: str) -> int:
    if text.isdigit():
        return int(text)
    found = [n for n, stems in enumerate(MONTH_STEMS, start=1) if text.casefold().startswith(tuple(stems.split()))]
    assert len(found) == 1, text
    return found[0]


def day_number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits.group()) if digits else 1 + SPELLED_DAYS.index(text.casefold())


def sunday_based_weekday(year: int, month: int, day: int) -> int:
    """Sakamoto's formula: 0 is Sunday."""
    year -= month < 3
    return (year + year // 4 - year // 100 + year // 400 + (0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4)[month - 1] + day) % 7


def split_of(day: date) -> str:
    return split_of_text(day.isoformat(), hashed_bytes=8)


def renderings(day: date) -> Iterator[tuple[Format, Pair]]:
    """Every unambiguous text for a date, before changes of case."""
    for date_format in FORMATS:
        if (pair := date_format.render(day)) is not None:
            yield date_format, pair


def weekdays_named(pair: Pair) -> set[int]:
    """Return the weekdays named in the source, outside the span of its month."""
    assert pair.gold is not None
    assert pair.gold[5] is not None
    start, stop = pair.gold[5]
    rest = (pair.source[:start] + " " + pair.source[stop:]).casefold()
    rest = re.sub(r"dagen\b", "dag", rest)  # Swedish torsdagen: the Thursday
    words = set(re.findall(r"[^\W\d_]+(?:-feira)?", rest))
    return {number for number, names in enumerate(WEEKDAY_WORDS) if words & set(names.split())}


def some_days(step: int) -> Iterator[date]:
    """Every `step`-th day of the century; a step prime to 7, 12 and 31 meets every weekday, month and day."""
    for days in range(0, (LAST_DAY - FIRST_DAY).days + 1, step):
        yield FIRST_DAY + timedelta(days)


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_pairs_and_another_seed_others(split: Split) -> None:
    assert generate(500, split=split, seed=3) == generate(500, split=split, seed=3)
    assert generate(500, split=split, seed=3) != generate(500, split=split, seed=4)


@pytest.mark.parametrize("split", SPLITS)
def test_a_smaller_size_gives_a_prefix_of_a_larger_one(split: Split) -> None:
    assert generate(5000, split=split)[:100] == generate(100, split=split)


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        ("train", "0fff343cd8a1e88e6a59fb6d8354e5b81b8e1c62c954ad22102de1d1b1a2e981"),
        ("valid", "4d395b88a1695363611d4bf6ddab2d7c84563fedceb459ddc4f89f72d31c1f45"),
        ("test", "cd16e9ff7dac94151efc2a42c56bda61b9e3a5e1a0b02b61363266838109a681"),
    ],
)
def test_the_dataset_is_the_one_of_the_published_results(split: Split, digest: str) -> None:
    lines = "".join(f"{pair.source}\t{pair.target}\t{pair.gold}\n" for pair in generate(1000, split=split))
    assert hashlib.sha256(lines.encode()).hexdigest() == digest


def test_no_date_is_in_two_splits_whatever_the_seeds() -> None:
    dates = {
        split: {pair.target for seed in (0, 1, 2) for pair in generate(10_000, split=split, seed=seed)}
        for split in SPLITS
    }
    assert not dates["train"] & dates["valid"]
    assert not dates["train"] & dates["test"]
    assert not dates["valid"] & dates["test"]
    assert all(split_of(date.fromisoformat(iso)) == split for split in SPLITS for iso in dates[split])


def test_dates_are_split_80_10_10() -> None:
    counts = Counter(split_of(day) for day in some_days(1))
    assert sum(counts.values()) == 36_525
    assert counts["train"] / 36_525 == pytest.approx(0.8, abs=0.01)
    assert counts["valid"] / 36_525 == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_no_date_is_repeated_before_every_date_of_the_split_has_occurred(split: Split) -> None:
    available = sum(split_of(day) == split for day in some_days(1))
    assert available >= 2000
    assert len({pair.target for pair in generate(available, split=split)}) == available
    assert set(Counter(pair.target for pair in generate(2 * available, split=split)).values()) == {2}


@pytest.mark.parametrize("split", SPLITS)
def test_every_target_is_a_date_from_1950_to_2049(split: Split) -> None:
    for pair in generate(10_000, split=split):
        day = date.fromisoformat(pair.target)
        assert day.isoformat() == pair.target
        assert date(1950, 1, 1) <= day <= date(2049, 12, 31)


@pytest.mark.parametrize("split", SPLITS)
def test_gold_aligns_each_digit_with_its_source_words_or_digits(split: Split) -> None:
    for pair in generate(10_000, split=split):
        assert pair.gold is not None
        assert [span is None for span in pair.gold] == [character == "-" for character in pair.target]
        assert len(set(pair.gold[:4])) == len(set(pair.gold[5:7])) == len(set(pair.gold[8:])) == 1
        year, month, day = spans_of(pair)
        target = date.fromisoformat(pair.target)
        assert year in (f"{target.year}", f"{target.year % 100:02}"), pair
        assert month_number(month) == target.month, pair
        assert day_number(day) == target.day, pair


def test_gold_spans_are_whole_words_without_their_dots() -> None:
    for pair in generate(20_000, split="train"):
        assert pair.gold is not None
        if pair.source.isdigit():  # 20260305 has no edges between its fields
            continue
        for span in {span for span in pair.gold if span is not None}:
            before, after = pair.source[: span[0]][-1:], pair.source[span[1] :][:1]
            assert not before.isalnum(), pair
            assert not after.isalnum(), pair
            assert all(character.isalnum() or character == "-" for character in pair.source[slice(*span)]), pair


def test_ordinals_have_the_ending_of_their_number() -> None:
    endings: dict[str, set[int]] = {}
    for day in (date(2026, 1, number) for number in range(1, 32)):
        for _, pair in renderings(day):
            ending = re.fullmatch(r"\d+(\D*)", spans_of(pair)[2])
            if ending:
                endings.setdefault(ending.group(1), set()).add(day.day)
    assert endings.pop("") == set(range(1, 32))
    assert endings == {
        "st": {1, 21, 31},
        "nd": {2, 22},
        "rd": {3, 23},
        "th": set(range(4, 21)) | set(range(24, 31)),
        "er": {1},
        "º": {1},
    }


def test_weekdays_in_the_text_are_correct() -> None:
    for day in some_days(101):
        for form, pair in renderings(day):
            named = "{weekday}" in form.template or "{dow}" in form.template
            assert weekdays_named(pair) == ({sunday_based_weekday(day.year, day.month, day.day)} if named else set()), (
                pair
            )


def test_no_text_is_ambiguous_even_ignoring_case() -> None:
    readings: dict[str, str] = {}
    years = (1950, 1963, 1999, 2000, 2001, 2005, 2010, 2012, 2020, 2025, 2026, 2049)
    for day in (day for day in some_days(1) if day.year in years):
        for _, pair in renderings(day):
            assert readings.setdefault(pair.source.casefold(), pair.target) == pair.target


def test_digits_around_slashes_or_dashes_are_unambiguous() -> None:
    checked = 0
    for day in some_days(17):
        for _, pair in renderings(day):
            numbers = re.search(r"\b(\d\d?)[/-](\d\d?)[/ -](\d+)$", pair.source)
            if not numbers:
                continue
            first, second, last = numbers.groups()
            orders = [(last, first, second), (last, second, first)]
            if len(last) == 2 and len(first) == 2:
                orders.append((first, second, last))
            found = set()
            for year, month, month_day in orders:
                century = "" if len(year) == 4 else "19" if year >= "50" else "20"
                try:
                    reading = date.fromisoformat(f"{century}{year}-{month:0>2}-{month_day:0>2}")
                except ValueError:
                    continue
                weekdays = weekdays_named(pair)
                if not weekdays or weekdays == {reading.isoweekday() % 7}:
                    found.add(reading)
            assert found == {day}, pair
            checked += 1
    assert checked > 10_000


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("Donnerstag, 5. März 2026", "2026-03-05"),
        ("5. März '26", "2026-03-05"),
        ("Do 5.3.26", "2026-03-05"),
        ("the fifth of March 2026", "2026-03-05"),
        ("Friday, the twenty-first of November 1997", "1997-11-21"),
        ("March 5th, 2026", "2026-03-05"),
        ("Mar 5 '26", "2026-03-05"),
        ("Thu, 3/5/26", "2026-03-05"),
        ("jeu. 5/3/26", "2026-03-05"),
        ("jeudi 5 mars 2026", "2026-03-05"),
        ("1er mars 2026", "2026-03-01"),
        ("5 de marzo de 2026", "2026-03-05"),
        ("giovedì 5 marzo 2026", "2026-03-05"),
        ("1º agosto 1968", "1968-08-01"),
        ("quinta-feira, 5 de março de 2026", "2026-03-05"),
        ("5 mrt '26", "2026-03-05"),
        ("do 5-3-2026", "2026-03-05"),
        ("5 марта 2026 г.", "2026-03-05"),
        ("чт 05.03.26", "2026-03-05"),
        ("czwartek, 5 marca 2026 r.", "2026-03-05"),
        ("torsdagen den 5 mars 2026", "2026-03-05"),
        ("2026/03/05", "2026-03-05"),
        ("20260305", "2026-03-05"),
        ("5.3.2026", "2026-03-05"),
        ("12/25/26", "2026-12-25"),
        ("25/12/99", "1999-12-25"),
        ("25/12/49", "2049-12-25"),
        ("5/5/2026", "2026-05-05"),
        ("12/31/49", "2049-12-31"),
        ("1/31/50", "1950-01-31"),
    ],
)
def test_known_texts_are_generated_for_their_dates(text: str, iso: str) -> None:
    assert text in {pair.source for _, pair in renderings(date.fromisoformat(iso))}


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("3/5/2026", ("2026-03-05", "2026-05-03")),
        ("5-3-2026", ("2026-03-05", "2026-05-03")),
        ("3/5/26", ("2026-03-05", "2026-05-03")),
        ("25/12/26", ("2026-12-25", "2025-12-26")),
        ("05/05/26", ("2026-05-05", "2005-05-26")),
        ("Sat, 5/9/26", ("2026-05-09", "2026-09-05")),  # in every year these two fall on the same weekday
        ("lör 5/9 2026", ("2026-05-09", "2026-09-05")),
        ("sam. 5/9/26", ("2026-05-09", "2026-09-05")),
    ],
)
def test_ambiguous_texts_are_never_generated(text: str, dates: tuple[str, str]) -> None:
    for iso in dates:
        assert text not in {pair.source for _, pair in renderings(date.fromisoformat(iso))}


def test_every_language_and_template_occurs_in_20_000_pairs() -> None:
    assert {"en", "de", "fr", "es", "it", "pt", "nl", "ru"} <= set(LANGUAGES)
    assert {form.language for form in FORMATS} - {"zxx"} == set(LANGUAGES)
    missing = set(FORMATS)
    for pair in generate(20_000, split="train"):
        day = date.fromisoformat(pair.target)
        if any(written is not None and written.source == pair.source for written in (f.render(day) for f in missing)):
            writers = [form for form, written in renderings(day) if written.source == pair.source]
            if len(writers) == 1:  # a text that two formats share identifies neither
                missing.discard(writers[0])
    assert not missing


def test_only_formats_with_digits_around_slashes_or_dashes_skip_dates() -> None:
    days = list(some_days(1009))
    fits = Counter(form for day in days for form, _ in renderings(day))
    partial = {form for form in FORMATS if fits[form] < len(days)}
    assert partial >= {Format("zxx", "{m}/{d}/{year}"), Format("zxx", "{d}-{m}-{year}")}
    assert all(re.search(r"(?<!\{year\}.)\{(d|m)+\}[/-]\{(d|m)+\}", form.template) for form in partial)


def test_no_format_is_listed_twice() -> None:
    assert len(set(FORMATS)) == len(FORMATS)


def test_most_texts_keep_their_case_and_some_are_lower_or_upper_case() -> None:
    as_written = lower = upper = 0
    for pair in generate(5000, split="train"):
        forms = {written.source for _, written in renderings(date.fromisoformat(pair.target))}
        if pair.source in forms:
            as_written += 1
        elif pair.source.islower():
            lower += 1
        else:
            assert pair.source == pair.source.upper(), pair
            upper += 1
    assert as_written > 3500
    assert lower > 50  # few: most languages write in lower case anyway
    assert upper > 250


def test_size_zero_gives_no_pairs() -> None:
    assert generate(0, split="test") == []


def test_two_digit_years_cover_every_year_of_the_range() -> None:
    for year, form in product(range(1950, 2050), [Format("zxx", "{dd}.{mm}.{yy}"), Format("zxx", "{m}/{d}/{yy}")]):
        pair = form.render(date(year, 12, 25))
        assert pair is not None
        assert pair.source.endswith(f"{year % 100:02}")
        assert pair.target == f"{year}-12-25"

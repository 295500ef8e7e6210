"""Tests of the dataset readers, on small files of the same format and, if QKV_DATA is set, on the real ones."""

import gzip
import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.datasets.corpora.text import cmudict, multi30k, tatoeba
from qkv.datasets.dataset import DatasetConfig, PairDataset, TextDataset
from qkv.datasets.dataset_cache import DatasetCache
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.text_files import split_by_source
from qkv.errors import InputError
from qkv.registry import registered
from qkv.tasks.base.task import train_tokenizer
from qkv.tokenizers.trained import UNK
from tests.datasets.build import dataset, load

real = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")
Write = Callable[[str, str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Replace a real file by a small one, and patch its hash."""
    monkeypatch.delenv("QKV_DATA", raising=False)

    def put(dataset: str, name: str, text: str) -> None:
        files = registered("dataset")[dataset].files
        file = next(file for file in files if name in Path(file.path).name)
        path = tmp_path / file.path
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("_about.txt", "about")
                archive.writestr("deu.txt", text)
        else:
            path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        data = path.read_bytes()
        known = replace(file, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        replaced = tuple(known if other == file else other for other in files)
        monkeypatch.setattr(registered("dataset")[dataset], "files", replaced)

    return put


def sources(pairs: list[Pair]) -> set[str]:
    return {pair.source.casefold() for pair in pairs}


def test_multi30k_pairs_the_lines_of_two_languages(write: Write, tmp_path: Path) -> None:
    for name in multi30k.SPLITS.values():
        for language, text in (("de", "Ein Hund.\n\u2028Zwei\n"), ("fr", "Un chien.\nDeux\n")):
            write("multi30k", f"{name}.{language}", f"{name} {text}")
    loaded = load("multi30k", source="de", target="fr", folder=str(tmp_path))
    assert list(loaded.splits) == ["train", "valid", "test_2016_flickr", "test_2017_flickr"]
    assert loaded.splits["valid"] == [Pair("val Ein Hund.", "val Un chien."), Pair("\u2028Zwei", "Deux")]
    assert loaded.notes == ()


def test_multi30k_notes_the_missing_czech_test_set_of_2017(write: Write, tmp_path: Path) -> None:
    for name in ("train", "val", "test_2016_flickr"):
        write("multi30k", f"{name}.cs", "Pes.\n")
        write("multi30k", f"{name}.en", "A dog.\n")
    for languages in (("en", "cs"), ("cs", "en")):
        loaded = load("multi30k", source=languages[0], target=languages[1], folder=str(tmp_path))
        assert list(loaded.splits) == ["train", "valid", "test_2016_flickr"]
        assert loaded.notes == ("multi30k: test_2017_flickr does not exist in Czech: skipped",)


@pytest.mark.parametrize(
    ("name", "source", "target", "words"),
    [
        ("multi30k", "en", "dee", r"target = 'dee' \(did you mean de\?\)"),
        ("multi30k", "de", "de", "multi30k: source and target are both de: choose two of en, de, fr, cs"),
        ("tatoeba", "en", "fr", r"target = 'fr' \(known: de, en\)"),
        ("tatoeba", "en", "en", "tatoeba: en to en is not available"),
    ],
)
def test_unknown_languages_are_rejected(name: str, source: str, target: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(name, source=source, target=target)


def test_tatoeba_splits_share_no_sentence_in_any_spelling(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tatoeba, "VALID", 5)
    monkeypatch.setattr(tatoeba, "TEST", 7)
    rows = [(f"Sentence {number // 2}" + ".!"[number % 2], f"Satz {number // 3}.") for number in range(60)]
    write("tatoeba", "", "".join("\t".join(row) + "\n" for row in rows))

    def plain(sentence: str) -> str:
        return sentence.rstrip(".!").lower()

    for languages in ({}, {"source": "de", "target": "en"}):
        splits = load("tatoeba", folder=str(tmp_path), **languages).splits
        english_first = not languages
        read = {
            (pair.source, pair.target)[:: 1 if english_first else -1] for pairs in splits.values() for pair in pairs
        }
        assert read <= set(rows)
        assert (len(splits["valid"]), len(splits["test"])) == (5, 7)
        assert len({plain(pair.source) for pair in splits["valid"] + splits["test"]}) == 12
        for split, others in (("train", ("valid", "test")), ("valid", ("test",))):
            held_out = [pair for other in others for pair in splits[other]]
            assert not {plain(pair.source) for pair in splits[split]} & {plain(pair.source) for pair in held_out}
        held_out = splits["valid"] + splits["test"]
        assert not {plain(pair.target) for pair in splits["train"]} & {plain(pair.target) for pair in held_out}
        # every other pair is kept
        kept = [
            row
            for row in rows
            if plain(row[languages != {}]) not in {plain(pair.source) for pair in held_out}
            and plain(row[not languages]) not in {plain(pair.target) for pair in held_out}
        ]
        assert len(splits["train"]) == len(kept)


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("cat K AE1 T", Pair("cat", "K AE1 T")),
        ("read(2) R EH1 D", Pair("read", "R EH1 D")),
        ("aalborg AO1 L # place, danish", Pair("aalborg", "AO1 L")),
        ("dail(2) D OY1 L # org, irish", Pair("dail", "D OY1 L")),
        ("a.'s EY1 Z", Pair("a.'s", "EY1 Z")),
    ],
)
def test_a_cmudict_entry_is_a_word_and_its_phonemes(line: str, pair: Pair) -> None:
    assert cmudict.parse(line, "here") == pair


@pytest.mark.parametrize("line", ["", "cat", "cat ", "cat k ae1 t", "cat K  AE1", "cat # K AE1", "(2) K", "cat K AE3"])
def test_invalid_cmudict_entries_are_reported_with_their_line(line: str) -> None:
    with pytest.raises(InputError, match="cmudict: line 3 is not a valid entry"):
        cmudict.parse(line, "cmudict: line 3")


def test_all_pronunciations_of_a_word_are_pairs_of_one_split(write: Write, tmp_path: Path) -> None:
    write(
        "cmudict", "", "".join(f"w{'abcdefghij'[n % 10]}{n} K\nw{'abcdefghij'[n % 10]}{n}(2) T\n" for n in range(100))
    )
    splits = load("cmudict", folder=str(tmp_path)).splits
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 180, "valid": 10, "test": 10}
    for pairs in splits.values():
        assert [pair.target for pair in pairs] == ["K", "T"] * (len(pairs) // 2)
        assert all(one.source == other.source for one, other in zip(pairs[::2], pairs[1::2], strict=True))


def test_a_text_is_split_into_its_first_nine_tenths_and_the_rest(write: Write, tmp_path: Path) -> None:
    text = "To be, or not to be: ö\n" * 7
    write("tinyshakespeare", "", text)
    loaded = load("tinyshakespeare", folder=str(tmp_path))
    assert loaded.splits == {"train": text[: int(len(text) * 0.9)], "valid": text[int(len(text) * 0.9) :]}


def test_a_source_in_another_case_is_in_the_same_split() -> None:
    pairs = [Pair(text, "x") for number in range(50) for text in (f"source {number}", f"SOURCE {number}")]
    splits = split_by_source(pairs, 10, 5)
    assert {split: len(found) for split, found in splits.items()} == {"train": 70, "valid": 20, "test": 10}
    assert not sources(splits["train"]) & sources(splits["valid"] + splits["test"])
    assert not sources(splits["valid"]) & sources(splits["test"])


def test_a_split_does_not_depend_on_the_order_of_the_pairs() -> None:
    pairs = [Pair(f"source {number}", "x") for number in range(50)]
    forth, back = split_by_source(pairs, 10, 5), split_by_source(pairs[::-1], 10, 5)
    assert {split: set(found) for split, found in forth.items()} == {split: set(found) for split, found in back.items()}


PAIRS = PairDataset({"train": [Pair("Cat", "K AE1 T"), Pair("Hat", "HH AE1 T")], "valid": [Pair("xyz", "Q")]})


def test_a_vocabulary_is_trained_on_the_training_pairs_only() -> None:
    shared = train_tokenizer(PAIRS, dataset("dates"))
    assert shared.source is shared.target
    assert {shared.source.piece(number) for number in range(4, len(shared.source))} == set("CatHKAE1T ")


def test_each_side_may_have_its_own_vocabulary() -> None:
    two = train_tokenizer(PAIRS, dataset("dates", tokenizer="char", target_tokenizer="word", lowercase=True))
    assert {two.source.piece(number) for number in range(4, len(two.source))} == set("cath")
    assert {two.target.piece(number) for number in range(4, len(two.target))} == {" k", " ae1", " t", " hh"}


def test_sources_alone_may_be_in_lower_case() -> None:
    two = train_tokenizer(PAIRS, dataset("dates", tokenizer="char", target_tokenizer="word", lowercase_source=True))
    assert two.source.encode(["CaT"]) == two.source.encode(["cat"])
    assert {two.source.piece(number) for number in range(4, len(two.source))} == set("cath")
    assert {two.target.piece(number) for number in range(4, len(two.target))} == {" K", " AE1", " T", " HH"}


def test_the_vocabulary_of_a_text_is_trained_on_its_training_split_only() -> None:
    loaded = TextDataset({"train": "abc\n", "valid": "xyz"})
    assert len(train_tokenizer(loaded, dataset("text")).source) == 4 + 4


@real
def test_multi30k_has_the_published_number_of_pairs() -> None:
    expected = {"train": 29_000, "valid": 1_014, "test_2016_flickr": 1_000, "test_2017_flickr": 1_000}
    for source, target in (("en", "de"), ("fr", "en")):
        splits = load("multi30k", source=source, target=target).splits
        assert {split: len(pairs) for split, pairs in splits.items()} == expected
    czech = load("multi30k", target="cs")
    assert {split: len(pairs) for split, pairs in czech.splits.items()} | {"test_2017_flickr": 1_000} == expected
    english = load("multi30k").splits["train"]
    assert english[0].source == "Two young, White males are outside near many bushes."
    assert english[0].target == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert all(pair.source.strip() and pair.target.strip() for pair in english)


@real
@pytest.mark.parametrize(
    ("config", "counted", "valid", "test"),
    [
        (dataset("tatoeba"), 168_604, 1_000, 2_000),
        (dataset("tatoeba", source="de", target="en"), 168_040, 1_000, 2_000),
        (dataset("cmudict"), 135_166, round(0.05 * 126_052), round(0.05 * 126_052)),
    ],
)
def test_no_source_of_a_real_dataset_is_in_two_splits(
    config: DatasetConfig, counted: int, valid: int, test: int
) -> None:
    splits = config.load().splits
    assert sum(len(pairs) for pairs in splits.values()) == counted
    assert (len(sources(splits["valid"])), len(sources(splits["test"]))) == (valid, test)
    assert not sources(splits["train"]) & sources(splits["valid"] + splits["test"])
    assert not sources(splits["valid"]) & sources(splits["test"])


@real
def test_cmudict_has_letters_on_one_side_and_phonemes_on_the_other() -> None:
    loaded = load("cmudict")
    two = train_tokenizer(loaded, dataset("dates", tokenizer="char", target_tokenizer="word"))
    assert len(two.source) == 4 + 29  # the alphabet, apostrophe, dash and dot
    assert len(two.target) == 4 + 69  # 24 consonants, and 15 vowels with three stresses each
    unseen = [pair.target for split in ("valid", "test") for pair in loaded.splits[split]]
    assert not any(UNK in ids for ids in two.target.encode(unseen))


@real
def test_tiny_shakespeare_is_split_as_nanogpt_does() -> None:
    texts = load("tinyshakespeare").splits
    assert {split: len(text) for split, text in texts.items()} == {"train": 1_003_854, "valid": 111_540}
    assert len(set(texts["train"] + texts["valid"])) == 65
    assert texts["train"].startswith("First Citizen:\nBefore we proceed any further")


def unaltered(name: str) -> None:
    """Skip if the checksum list of the folder shows that its copy of a dataset differs."""
    folder = Path(os.environ["QKV_DATA"])
    if not (folder / "SHA256SUMS").exists():
        return
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, path = line.split()
        if path.startswith(f"./{name}/") and hashlib.sha256((folder / path).read_bytes()).hexdigest() != digest:
            pytest.skip(f"{path} is not what SHA256SUMS beside it says it is")


@real
@pytest.mark.parametrize("name", [name for name, dataset in registered("dataset").items() if dataset.files])
def test_every_file_of_a_dataset_is_in_the_folder_with_the_expected_hash(name: str) -> None:
    unaltered(name)
    files = registered("dataset")[name].files
    if not (Path(os.environ["QKV_DATA"]) / files[0].path).parent.is_dir():
        pytest.skip(f"{name} is not in the folder that QKV_DATA names")
    assert all(DatasetCache.with_folder().find(file) is not None for file in files)


@real
@pytest.mark.parametrize(
    ("name", "sizes", "tags"),
    [("ud_english_ewt", (12_544, 2_001, 2_077), 17), ("wnut17", (3_394, 1_009, 1_287), 13)],
)
def test_tagged_datasets_have_the_published_sizes(name: str, sizes: tuple[int, ...], tags: int) -> None:
    unaltered(name)
    tagged = load(name).splits
    assert tuple(len(tagged[split]) for split in ("train", "valid", "test")) == sizes
    assert len({tag for one in tagged["train"] for tag in one.tags}) == tags
    assert all(len(one.words) == len(one.tags) > 0 for sentences in tagged.values() for one in sentences)


@real
def test_sentence_polarity_is_balanced_and_no_sentence_is_in_two_splits() -> None:
    splits = load("sentence_polarity").splits
    assert sum(len(pairs) for pairs in splits.values()) == 10_662
    for pairs in splits.values():
        assert sum(pair.target == "positive" for pair in pairs) / len(pairs) == pytest.approx(0.5, abs=0.05)
    assert not sources(splits["train"]) & sources(splits["valid"] + splits["test"])

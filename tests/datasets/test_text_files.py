"""Tests of reading user pairs: parsing, skipped lines and errors."""

import codecs
import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.datasets.formats.text_files import decode_lines, digest, hold_out, read_lines, read_pairs
from qkv.errors import InputError


def source_of(pair: Pair) -> str:
    return pair.source


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(*paths: Path, strict: bool = False) -> str:
    with pytest.raises(InputError) as caught:
        read_pairs(paths, strict=strict)
    return str(caught.value)


def test_a_tsv_file_gives_its_pairs(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "ein Haus\ta house\nzwei\ttwo\n")
    assert read_pairs([path])[0] == [Pair("ein Haus", "a house"), Pair("zwei", "two")]
    assert read_pairs([path])[1] == []


def test_two_files_give_the_pairs_of_their_lines(tmp_path: Path) -> None:
    source, target = written(tmp_path, "s", "ein\tHaus\nzwei"), written(tmp_path, "t", "a\nb\n")
    assert read_pairs([source, target])[0] == [Pair("ein\tHaus", "a"), Pair("zwei", "b")]


def parse(*words: str) -> str:
    """Return a CoNLL-U sentence in which every word but the first depends on the previous one."""
    rows = (f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\t_\t_\t_\n" for number, word in enumerate(words, start=1))
    return f"# a comment\n{''.join(rows)}\n"


def test_a_conllu_source_file_gives_texts_with_words_and_heads(tmp_path: Path) -> None:
    source = written(tmp_path, "s.conllu", parse("ein", "Haus", "!") + parse("10 000") + parse("x"))
    target = written(tmp_path, "t.txt", "a house!\n10,000\n\n")
    pairs, notes = read_pairs([source, target])
    words = [("ein", "Haus", "!"), ("10 000",)]
    assert [(pair.source, pair.target) for pair in pairs] == [("ein Haus !", "a house!"), ("10 000", "10,000")]
    assert [pair.parsed for pair in pairs] == [
        Tagged(words[0], ("X",) * 3, (0, 1, 2)), Tagged(words[1], ("X",), (0,))
    ]  # fmt: skip
    assert pairs[0].source_input == pairs[0].parsed
    assert notes == [f"{source} and {target}: skipped 1 line(s) with an empty side, the first at line 3"]
    assert [pair.target for pair in read_pairs([source, target], labelled=True)[0]] == ["a house!", "10,000"]


def test_the_number_of_targets_must_equal_the_number_of_trees(tmp_path: Path) -> None:
    trees = written(tmp_path, "s.conllu", parse("a", "b") + parse("c"))
    one, three = written(tmp_path, "one", "x\n"), written(tmp_path, "three", "x\ny\nz\n")
    assert refused(trees, one) == f"{trees} has 2 sentences but {one} has 1 lines: each source needs one target"
    assert refused(trees, three) == f"{trees} has 2 sentences but {three} has 3 lines: each source needs one target"
    assert f"{trees}: has no targets" in refused(trees)
    assert "no sentences found" in refused(written(tmp_path, "no.conllu", "# nothing\n"), one)


def test_the_fingerprint_of_pairs_includes_their_trees() -> None:
    heads = [None, (2, 0), (0, 1)]
    parsed = [None if one is None else Tagged(("a", "b"), ("", ""), one) for one in heads]
    prints = [PairDataset({"train": [Pair("a b", "c", parsed=one)]}).fingerprint for one in parsed]
    assert len(set(prints)) == 3
    assert prints[0] == hashlib.sha256(b"train 1\n'a b' 'c' None\n").hexdigest()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("last", ["", "ending"])
def test_line_endings_and_byte_order_marks_are_removed(tmp_path: Path, ending: str, mark: bytes, last: str) -> None:
    content = mark + f"a\tb{ending}c\td{ending if last else ''}".encode()
    assert read_pairs([written(tmp_path, "a.tsv", content)])[0] == [Pair("a", "b"), Pair("c", "d")]


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\x0bc\x85d\te"
    assert read_pairs([written(tmp_path, "a.tsv", text)])[0] == [Pair("a\u2028b\x0bc\x85d", "e")]


def test_lines_with_an_empty_side_are_counted_and_skipped_with_a_note(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "a\tb\n\n  \t \nc\t\n\td\ne\tf\n")
    pairs, notes = read_pairs([path])
    assert pairs == [Pair("a", "b"), Pair("e", "f")]
    assert notes == [f"{path}: skipped 4 line(s) with an empty side, the first at line 2"]


def test_an_empty_side_is_an_error_in_strict_mode(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "a\tb\n\nc\t\n")
    assert refused(path, strict=True) == f"{path}: line 2 has an empty side (2 such line(s))"


@pytest.mark.parametrize(("line", "columns"), [("only one", 1), ("a\tb\tc", 3)])
def test_a_wrong_number_of_columns_is_reported_with_its_line(tmp_path: Path, line: str, columns: int) -> None:
    path = written(tmp_path, "a.tsv", f"a\tb\n{line}\n")
    assert refused(path) == f"{path}: line 2 has {columns} column(s); expected source, one tab, target"
    with pytest.raises(InputError, match=f"line 2 has {columns} column.s.; expected text, one tab, label"):
        read_pairs([path], labelled=True)


def test_parallel_files_of_different_length_are_rejected(tmp_path: Path) -> None:
    short, long = written(tmp_path, "short", "a\nb\n"), written(tmp_path, "long", "a\nb\nc\nd\n")
    assert refused(short, long) == f"{short} has 2 lines but {long} has 4 lines: each source needs one target"
    assert refused(long, short) == f"{long} has 4 lines but {short} has 2 lines: each source needs one target"


def test_missing_and_empty_files_and_folders_are_reported_by_name(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.tsv") == f"{tmp_path / 'none.tsv'}: no such file"
    assert "folder" in refused(tmp_path)
    for content in (b"", b"\n \n", codecs.BOM_UTF8, codecs.BOM_UTF8 + b"\n"):
        path = written(tmp_path, "empty.tsv", content)
        assert refused(path) == f"{path}: is empty"
    path = written(tmp_path, "half.tsv", "a\t\nb\t\n")
    assert refused(path) == f"{path}: no pairs found"
    assert "not a folder" not in refused(written(tmp_path, "file", "x") / "below")


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_invalid_utf8_is_reported_with_file_and_offset(tmp_path: Path, mark: bytes) -> None:
    path = written(tmp_path, "latin1.tsv", mark + "a\tb\nM\xe4rz\tc\n".encode("latin-1"))
    offset = len(mark) + 5
    assert refused(path).startswith(f"{path}: not UTF-8 at byte {offset} (0xe4), line 2")
    assert path.read_bytes()[offset] == 0xE4


def test_utf16_files_are_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "a\tb\n".encode("utf-16"))
    assert f"{path}: not UTF-8 at byte 0" in refused(path)
    assert "iconv -f UTF-16 " in refused(path)


@pytest.mark.parametrize("count", [0, 3])
def test_pairs_come_from_one_file_or_two(tmp_path: Path, count: int) -> None:
    assert refused(*[tmp_path / "x"] * count) == f"pairs come from one table or from two files, not from {count}"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0")), min_size=1))
def test_lines_are_read_back_as_they_were_written(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    if not data.strip():
        with pytest.raises(InputError, match="is empty"):
            decode_lines(data, "here")
    elif not lines[0].startswith("\ufeff"):
        assert decode_lines(data, "here") == lines


def test_empty_lines_between_others_are_lines(tmp_path: Path) -> None:
    assert read_lines(written(tmp_path, "a", "a\n\n\nb\n\n")) == ["a", "", "", "b", ""]


texts = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("xyz")), min_size=1, max_size=40)


@given(texts, st.floats(0.001, 0.999))
def test_held_out_pairs_never_share_a_source_with_the_others(texts: list[tuple[str, str]], share: float) -> None:
    pairs = [Pair(*sides) for sides in texts]
    if len({pair.source for pair in pairs}) < 2:
        with pytest.raises(InputError, match=r"same text|single example"):
            hold_out(pairs, share, source_of)
        return
    kept, held = hold_out(pairs, share, source_of)
    assert kept
    assert held
    assert not {pair.source for pair in kept} & {pair.source for pair in held}
    assert sorted(kept + held, key=repr) == sorted(pairs, key=repr)


@given(texts, st.floats(0.001, 0.999), st.randoms())
def test_the_held_out_pairs_do_not_depend_on_the_order(
    texts: list[tuple[str, str]], share: float, rng: random.Random
) -> None:
    pairs = [Pair(*sides) for sides in texts]
    if len({pair.source for pair in pairs}) < 2:
        return
    mixed = list(pairs)
    rng.shuffle(mixed)
    assert set(hold_out(mixed, share, source_of)[1]) == set(hold_out(pairs, share, source_of)[1])


def test_the_held_out_share_is_as_configured_but_capped() -> None:
    pairs = [Pair(str(number), "x") for number in range(40_000)]
    assert len(hold_out(pairs[:1000], 0.05, source_of)[1]) == 50
    assert len(hold_out(pairs, 0.05, source_of)[1]) == 1000


def test_a_source_that_nearly_all_pairs_have_is_trained_on():
    sources = [f"x{number}" for number in range(100)]
    first = min(sources, key=digest)  # which would be held out before all others
    pairs = [Pair(source, "y") for source in sources]
    assert first in {pair.source for pair in hold_out(pairs, 0.05, source_of)[1]}
    often = pairs + [Pair(first, str(number)) for number in range(900)]
    assert [len(part) for part in hold_out(often, 0.05, source_of)] == [995, 5]
    twice = [*pairs, Pair(first, "again")]  # what is no majority is held out in its turn
    assert first in {pair.source for pair in hold_out(twice, 0.05, source_of)[1]}

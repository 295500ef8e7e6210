"""The movie reviews: the folds of their authors, and what is read of the archive."""

import hashlib
import os
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.config import build
from qkv.datasets.corpora.text.movie_reviews import MovieReviews
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.registry import lookup
from tests.datasets.build import load


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive that replaces the real one: two reviews per fold."""
    (file,) = MovieReviews.files
    path = tmp_path / file.path
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("movie_reviews/README", "about cv000")
        for fold in range(10):
            for label in ("neg", "pos"):
                archive.writestr(f"movie_reviews/{label}/cv{fold}07_1234.txt", f"a {label} film . \nnumber {fold} . \n")
    whole = path.read_bytes()
    known = replace(file, sha256=hashlib.sha256(whole).hexdigest(), size=len(whole))
    monkeypatch.setattr(MovieReviews, "files", (known,))
    return tmp_path


@pytest.mark.parametrize(("fold", "valid"), [(0, 1), (9, 0)])
def test_splits_follow_the_test_fold(store: Path, fold, valid) -> None:
    splits = MovieReviews(folder=str(store), fold=fold).read().splits
    assert set(splits["test"]) == {
        Pair(f"a neg film . \nnumber {fold} .", "negative"),
        Pair(f"a pos film . \nnumber {fold} .", "positive"),
    }
    assert {pair.source[-3] for pair in splits["valid"]} == {str(valid)}
    assert {pair.source[-3] for pair in splits["train"]} == {*"0123456789"} - {str(fold), str(valid)}
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 16, "valid": 2, "test": 2}


@pytest.mark.parametrize(
    ("name", "fold", "words"),
    [("movie_reviews", 10, "data.fold must be between 0 and 9, not 10"), ("imdb", 1, "unknown key data.fold")],
)
def test_invalid_folds_are_rejected(name, fold, words) -> None:
    with pytest.raises(InputError, match=words):
        build(lookup("dataset", name), {"fold": fold}, "recipe", prefix="data.")


@pytest.mark.corpus
@pytest.mark.skipif(
    not (Path(os.environ.get("QKV_DATA", "")) / MovieReviews.files[0].path).is_file(),
    reason=f"needs {MovieReviews.files[0].path} in QKV_DATA",
)
def test_the_reviews_are_two_thousand_no_two_alike_and_every_fold_is_half_positive() -> None:
    splits = load("movie_reviews", fold=4).splits
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 1600, "valid": 200, "test": 200}
    for pairs in splits.values():
        assert 2 * Counter(pair.target for pair in pairs)["positive"] == len(pairs)
    assert len({pair.source for pairs in splits.values() for pair in pairs}) == 2000

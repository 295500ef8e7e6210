"""Bag-of-words baseline for sentiment of 2,000 movie reviews, on the original ten folds.

    python -m benchmarks.movie_reviews                                    all folds, printed
    python -m benchmarks.movie_reviews --out runs/movie-reviews-bag       and recorded, for `qkv compare`

A logistic regression (scikit-learn) on the TF-IDF of words and pairs of words. It trains on the same eight folds as
`qkv train movie-reviews-han --set data.fold=N`, chooses on the ninth how much its weights are held back, and is tested
on the tenth, all in the same lower case. It needs scikit-learn, which qkv does not.
"""

import argparse
import shlex
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.timing import tell
from qkv import __version__
from qkv.datasets.corpora.text.movie_reviews import FOLDS
from qkv.experiments.results import Measure, Record, append_record
from qkv.runtime import provenance
from tests.datasets.build import load

try:
    import sklearn
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
except ModuleNotFoundError:
    raise SystemExit("the bag of words needs scikit-learn, which qkv does not: pip install scikit-learn") from None

HELD_BACK = (1.0, 3.0, 10.0, 30.0, 100.0)  # the inverse strength of the penalty on weights, as scikit-learn counts it


@dataclass(frozen=True)
class Fold:
    """Result on one fold."""

    accuracy: float
    features: int
    size: int  # reviews that were tested on
    seconds: float
    data_hash: str


def bag_of_words(folder: str | None, fold: int) -> Fold:
    """A logistic regression on TF-IDF, its penalty chosen on the validation fold."""
    data = load("movie_reviews", fold=fold, folder=folder)
    began = time.monotonic()
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=r"(?u)\b\w[\w']*\b|[!?]")
    words.fit([pair.source for pair in data.splits["train"]])
    read = {split: words.transform([pair.source for pair in pairs]) for split, pairs in data.splits.items()}
    labels = {split: [pair.target for pair in pairs] for split, pairs in data.splits.items()}
    fitted = [LogisticRegression(C=c, max_iter=1000).fit(read["train"], labels["train"]) for c in HELD_BACK]
    best = max(fitted, key=lambda one: one.score(read["valid"], labels["valid"]))
    seconds = time.monotonic() - began
    accuracy = float(best.score(read["test"], labels["test"]))
    return Fold(accuracy, best.coef_.size, len(labels["test"]), seconds, data.fingerprint)


def record(number: int, found: Fold, command: str) -> Record:
    """A record for `qkv compare`."""
    device, source_hash = provenance.device_name(torch.device("cpu")), provenance.source_hash()
    return Record(
        recipe=f"TF-IDF of words and pairs, logistic regression (scikit-learn {sklearn.__version__})",
        changes=(f"data.fold={number}",),
        seed=0,
        task="classify",
        model="logistic regression",
        parameters=found.features,
        steps=0,
        minutes=round(found.seconds / 60, 3),
        finished=True,
        data="movie_reviews",
        languages="",
        lowercase=True,
        data_hash=found.data_hash,
        split="test",
        size=found.size,
        left_out=0,
        beam=1,
        length_penalty=1.0,
        metrics=(Measure("accuracy", found.accuracy),),
        trained_on="",
        device=device,
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=source_hash,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=found.seconds,
        shipped=False,
        command=command,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(FOLDS)), choices=range(FOLDS), metavar="N")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    folds = [] if given.folds == list(range(FOLDS)) else ["--folds", *map(str, given.folds)]
    command = shlex.join(["python", "-m", "benchmarks.movie_reviews", *folds, "--out", str(given.out)])
    accuracies = []
    for number in given.folds:
        found = bag_of_words(given.data_dir, number)
        accuracies.append(100 * found.accuracy)
        tell("movie reviews", f"fold {number}", accuracy=found.accuracy, features=found.features)
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            append_record(given.out, record(number, found, command))
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    print(f"accuracy {statistics.mean(accuracies):.2f} % ± {spread:.2f} between {len(accuracies)} fold(s)")


if __name__ == "__main__":
    main()

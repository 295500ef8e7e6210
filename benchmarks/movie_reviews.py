"""Praise or blame in 2,000 long reviews, on the ten folds of their authors: HAN, the same with means, a bag of words.

    python -m benchmarks.movie_reviews                          all of them, on the GPU if there is one
    python -m benchmarks.movie_reviews --only bag               the bag of words alone (scikit-learn, on the CPU)
    python -m benchmarks.movie_reviews --folds 0 1 --seed 2     some folds, another seed
    python -m benchmarks.movie_reviews --set train.epochs=5     a change to the recipe movie-reviews-han

Everyone trains on the same eight folds, chooses on the ninth (a checkpoint, or how much the weights are held back) and
is tested on the tenth. The bag of words is a logistic regression on the TF-IDF of words and pairs of words, which come
in the same lower case. Runs are kept under --out, and one that is finished is not trained again.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.timing import GPU, tell
from qkv.data.movie_reviews import FOLDS
from qkv.data.registry import DataConfig, load_data
from qkv.interop import load
from qkv.training import job
from qkv.training.recipe import TASKS, read_recipe
from qkv.training.run import Run

HELD_BACK = (1.0, 3.0, 10.0, 30.0, 100.0)  # the inverse strength of the penalty on weights, as scikit-learn counts it
Contender = Callable[[int], float]  # the accuracy on a fold


def network(pooling: str, changes: Sequence[str], seed: int, out: Path, device: str, fold: int) -> float:
    """Train a hierarchical attention network for a fold, unless that is done; the accuracy of its best checkpoint."""
    settings = [f"data.fold={fold}", f"model.pooling={pooling}", f"seed={seed}", *changes]
    folder = out / f"{pooling}-{fold}-{seed}"
    if not folder.exists():
        job.begin(read_recipe("movie-reviews-han", settings), folder, device)
    elif not job.resume(folder, device).place.finished:
        raise SystemExit(f"{folder}: stopped before its end: call again to go on")
    run, model = Run.open(folder), load(folder, device)
    kind, data = TASKS[run.recipe.task], run.data()
    task = kind.prepare(data, model.tokenizer, model.config, run.recipe.train, run.recipe.seed)
    return float(task.examine(model, data, "test").scores["accuracy"])


def bag_of_words(folder: str | None, fold: int) -> float:
    """A logistic regression on TF-IDF, its penalty chosen on the validation fold."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    splits = load_data(DataConfig(name="movie_reviews", fold=fold, folder=folder)).splits
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=r"(?u)\b\w[\w']*\b|[!?]")
    words.fit([pair.source for pair in splits["train"]])
    read = {split: words.transform([pair.source for pair in pairs]) for split, pairs in splits.items()}
    labels = {split: [pair.target for pair in pairs] for split, pairs in splits.items()}
    fitted = [LogisticRegression(C=c, max_iter=1000).fit(read["train"], labels["train"]) for c in HELD_BACK]
    best = max(fitted, key=lambda one: one.score(read["valid"], labels["valid"]))
    return float(best.score(read["test"], labels["test"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("han", "mean", "bag"))
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(FOLDS)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--out", type=Path, default=Path("runs/movie-reviews"))
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cuda" if GPU else "cpu")
    given = parser.parse_args()
    changes = [*given.changes, *([f'data.folder="{given.data_dir}"'] if given.data_dir else [])]
    contenders: dict[str, Contender] = {
        "han": partial(network, "attention", changes, given.seed, given.out, given.device),
        "mean": partial(network, "mean", changes, given.seed, given.out, given.device),
        "bag": partial(bag_of_words, given.data_dir),
    }
    if given.only:
        contenders = {given.only: contenders[given.only]}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for fold in given.folds:
        for name, contender in contenders.items():
            found[name].append(contender(fold))
        tell("movie reviews", f"fold {fold}", **{name: values[-1] for name, values in found.items()})
    print_table(given.folds, found)


def print_table(folds: Sequence[int], found: dict[str, list[float]]) -> None:
    """Accuracies in percent, a row for each fold, and their mean with the deviation between folds."""
    print("| fold | " + " | ".join(found) + " |\n|---" + "|---:" * len(found) + "|")
    for number, fold in enumerate(folds):
        print(f"| {fold} | " + " | ".join(f"{100 * values[number]:.1f}" for values in found.values()) + " |")
    spread = (100 * statistics.stdev(values) if len(values) > 1 else 0.0 for values in found.values())
    means = (
        f"{100 * statistics.mean(values):.2f} ± {by:.2f}" for values, by in zip(found.values(), spread, strict=True)
    )
    print("| mean | " + " | ".join(means) + " |")


if __name__ == "__main__":
    main()

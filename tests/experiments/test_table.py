"""Tables: values, order, grouping and the commands that reproduce each row."""

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from qkv.experiments.results import Measure, Record
from qkv.experiments.table import markdown, spread, tables
from qkv.registry import lookup, registered

from .records import record


def grid(text: str, title: str) -> list[dict[str, str]]:
    """Return the rows of the first table under a title."""
    section = text.split(f"## {title}\n", 1)[1]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    rows = lines[2 : next((n for n, line in enumerate(lines[2:], 2) if line[0] == "recipe"), None)]
    return [dict(zip(lines[0], row, strict=True)) for row in rows]


def page(*records: Record) -> str:
    return markdown(tables(records), "qkv compare runs/*")


def test_seeds_of_a_recipe_are_one_row_with_mean_and_range() -> None:
    (row,) = grid(page(record(38.0), record(39.0, seed=1), record(40.0, seed=2)), "multi30k en to de")
    assert row["recipe"] == "multi30k-gru, beam 5"
    assert row["seeds"] == "3"
    assert row["test_2016_flickr: BLEU, lowercased, tokenized"] == "39.00 (38.00 to 40.00)"
    assert row["test_2016_flickr: sacreBLEU, cased"] == "38.00 (37.00 to 39.00)"
    assert row["minutes of training"] == "3.2 (3.2 to 3.2)"


def test_each_split_has_its_own_columns_and_a_missing_one_is_empty() -> None:
    rows = grid(
        page(record(38.0), record(31.0, split="test_2017_flickr"), record(30.0, changes=("model.score=dot",))),
        "multi30k en to de",
    )
    assert [row["test_2017_flickr: BLEU, lowercased, tokenized"] for row in rows] == ["31.00", ""]


def test_the_best_row_comes_first_for_scores_and_error_rates() -> None:
    ordered = [record(value, recipe=name) for name, value in (("b", 30.0), ("a", 20.0), ("c", 40.0))]
    assert [row["recipe"][0] for row in grid(page(*ordered), "multi30k en to de")] == ["c", "b", "a"]
    rates = [
        record(
            recipe=name, data="cmudict", languages="", split="test", metrics=(Measure("per", rate), Measure("wer", 0.5))
        )
        for name, rate in (("worse", 0.08), ("better", 0.075))
    ]
    rows = grid(page(*rates), "cmudict")
    assert [row["recipe"] for row in rows] == ["better, beam 5", "worse, beam 5"]
    assert rows[0]["test: phoneme error rate, %"] == "7.50"
    assert rows[0]["test: word error rate, %"] == "50.00"


@pytest.mark.parametrize("name", registered("dataset"))
def test_the_columns_of_every_dataset_are_metrics_of_its_tasks(name: str) -> None:
    dataset = lookup("dataset", name)
    tasks = [task for task in registered("task").values() if dataset.dataset_class in task.datasets]
    assert dataset.columns
    assert all(any(_has_metric(task, column.metric) for task in tasks) for column in dataset.columns)


def _has_metric(task: type[Any], name: str) -> bool:
    try:
        return bool(task.metric(name).name)
    except KeyError:
        return False


def test_pretraining_tasks_have_their_own_tables() -> None:
    classified = record(recipe="c", data="imdb", languages="", task="classify", metrics=(Measure("accuracy", 0.9),))
    masked = record(
        recipe="m", data="imdb", languages="", task="masked_lm",
        metrics=(Measure("perplexity", 20.0), Measure("accuracy", 0.4)),
    )  # fmt: skip
    text = page(classified, masked)
    assert [row["recipe"] for row in grid(text, "imdb, masked lm")] == ["m"]
    assert grid(text, "imdb, masked lm")[0]["test_2016_flickr: masked words, %"] == "40.00"
    assert [row["recipe"] for row in grid(text, "imdb")] == ["c"]


def test_a_row_that_was_never_scored_comes_last() -> None:
    unscored = record(recipe="a", metrics=(Measure("bleu_tokenised", None),))
    assert [row["recipe"][0] for row in grid(page(unscored, record(recipe="b")), "multi30k en to de")] == ["b", "a"]


def test_a_newer_record_replaces_an_older_one() -> None:
    old, new = record(10.0, date="2026-01-01T00:00:00+00:00"), record(20.0, date="2026-02-01T00:00:00+00:00")
    for records in ((old, new), (new, old)):
        (row,) = grid(page(*records), "multi30k en to de")
        assert row["test_2016_flickr: BLEU, lowercased, tokenized"] == "20.00"


def test_each_search_has_its_own_row() -> None:
    rows = grid(page(record(38.0), record(37.0, beam=1), record(39.0, length_penalty=0.6)), "multi30k en to de")
    assert [row["recipe"] for row in rows] == [
        "multi30k-gru, beam 5, length penalty 0.6",
        "multi30k-gru, beam 5",
        "multi30k-gru, greedy",
    ]


@pytest.mark.parametrize("name", registered("task"))
def test_greedy_and_beam_search_have_two_rows_for_tasks_that_search(name: str) -> None:
    task = lookup("task", name)
    records = [record(recipe="r", task=name, beam=beam) for beam in (1, 5)]
    labels = {row.label for table in tables(records) for row in table.rows}
    assert labels == ({"r, greedy", "r, beam 5"} if task.searches else {"r"})


def test_different_data_are_in_different_tables() -> None:
    text = page(record(38.0), record(39.0, seed=1, data_hash="ef" * 32), record(0.0, data="tatoeba"))
    titles = [line for line in text.splitlines() if line.startswith("## multi30k")]
    assert len(set(titles)) == 2
    assert all(title.startswith("## multi30k en to de: multi30k-gru, data ") for title in titles)
    assert text.count("The runs of multi30k en to de used different data") == 2
    assert text.count("## tatoeba en to de\n") == 1
    assert "38.50" not in text  # the mean over different data
    assert "data: SHA-256 " + "ef" * 32 in text


def test_cased_scores_of_lowercased_models_are_not_shown() -> None:
    rows = grid(page(record(38.0, lowercase=True), record(30.0, recipe="cased")), "multi30k en to de")
    assert [row["test_2016_flickr: sacreBLEU, cased"] for row in rows] == ["", "29.00"]


def test_the_table_of_language_models_cites_nanogpt() -> None:
    text = page(
        record(task="language_model", data="tinyshakespeare", languages="", split="valid", recipe="shakespeare-lstm",
               metrics=(Measure("nats", 1.4812),), beam=1)
    )  # fmt: skip
    (row,) = grid(text, "tinyshakespeare")
    assert (row["recipe"], row["valid: nats per character"]) == ("shakespeare-lstm", "1.4812")
    assert "1.4697" in text
    assert "`qkv evaluate RUN --split valid`, seed 0" in text


def test_user_pairs_show_translation_metrics_and_rouge_if_measured() -> None:
    settings = {"data": "pairs", "languages": "", "split": "valid"}
    translation_metrics = (Measure("bleu", 20.0), Measure("chrf", 40.0), Measure("exact", 0.1))
    rouge = (Measure("rouge_1", 0.4), Measure("rouge_2", 0.2), Measure("rouge_l", 0.35, "stem:no"))
    (row,) = grid(page(record(**settings, metrics=translation_metrics)), "pairs")
    shown = [name.removeprefix("valid: ") for name in row if name.startswith("valid: ")]
    assert shown == ["sacreBLEU", "chrF", "exact, %"]
    text = page(record(**settings, metrics=(*translation_metrics, *rouge)))
    (row,) = grid(text, "pairs")
    assert [row[f"valid: {name}"] for name in shown] == ["20.00", "40.00", "10.00"]
    assert [row[f"valid: ROUGE-{kind}, %"] for kind in "12L"] == ["40.00", "20.00", "35.00"]
    assert "- ROUGE-L, %: `stem:no`" in text


def test_unfinished_training_and_skipped_pairs_are_noted() -> None:
    (row,) = grid(page(record(finished=False, left_out=3)), "multi30k en to de")
    assert row["recipe"] == "multi30k-gru, beam 5 (training not finished, 3 examples too long, skipped)"


def test_the_page_shows_command_environment_and_signatures() -> None:
    text = page(record())
    assert "Generated by `qkv compare runs/*`" in text
    assert "`nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0|words:moses-de`" in text
    code = "torch 2.11.0, commit cccccccccccc (source dddddddddddd)"
    assert f"- trained on NVIDIA H200 in bfloat16 with CUDA graphs, {code}, 2026-11-15\n" in text
    assert "evaluated on a laptop, torch 2.11.0, qkv 0.1.0" in page(record(trained_on="", device="a laptop", commit=""))


@pytest.mark.parametrize(
    ("changes", "device", "code"),
    [
        ({"device": "a laptop"}, "a laptop", "torch 2.11.0, commit cccccccccccc (source dddddddddddd)"),
        ({"torch": "2.13.0"}, "NVIDIA H200", "torch 2.13.0, commit cccccccccccc (source dddddddddddd)"),
        ({"commit": "e" * 40}, "NVIDIA H200", "torch 2.11.0, commit eeeeeeeeeeee (source dddddddddddd)"),
        ({"source_hash": "f" * 64}, "NVIDIA H200", "torch 2.11.0, commit cccccccccccc (source ffffffffffff)"),
    ],
)
def test_a_different_evaluation_environment_is_shown(changes: dict[str, str], device: str, code: str) -> None:
    trained_by = "torch 2.11.0, commit cccccccccccc (source dddddddddddd)"
    trained = f"trained on NVIDIA H200 in bfloat16 with CUDA graphs, {trained_by}"
    assert f"- {trained}; evaluated on {device}, {code}, 2026-11-15\n" in page(record(**changes))


def test_commands_reproduce_a_row() -> None:
    changes = ("model.score=dot", 'data.train=["a b.tsv"]')
    settings = {"changes": changes, "seed": 2, "beam": 3, "length_penalty": 0.8}
    text = page(record(**settings), record(**settings, split="test_2017_flickr"))
    train = "`qkv train multi30k-gru --set model.score=dot --set 'data.train=[\"a b.tsv\"]' --set seed=SEED`"
    split = "--split test_2016_flickr --split test_2017_flickr"
    assert f"- {train}, then `qkv evaluate RUN {split} --num-beams 3 --length-penalty 0.8`, seed 2\n" in text


def test_the_seeds_of_a_row_are_listed() -> None:
    text = page(*(record(seed=seed, changes=("model.score=dot",)) for seed in (2, 0, 1)))
    assert "`qkv train multi30k-gru --set model.score=dot --set seed=SEED`, then `qkv evaluate RUN --split" in text
    assert "seeds 0, 1, 2\n" in text


def fold(number: int, accuracy: float, **changes: Any) -> Record:
    """Return a record of one of several folds; fold 0 is the default."""
    fold_change = (f"data.fold={number}",) if number else ()
    return record(
        recipe="movies", data="movie_reviews", languages="", task="classify", split="test",
        metrics=(Measure("accuracy", accuracy),), data_hash=f"{number:02d}" * 32,
        **changes | {"changes": (*fold_change, *changes.get("changes", ()))},
    )  # fmt: skip


def test_folds_of_a_recipe_are_one_row() -> None:
    mean_pooling = [fold(number, 0.6, changes=("model.pooling=mean",)) for number in range(3)]
    text = page(*(fold(number, 0.7 + number / 10) for number in range(3)), *mean_pooling)
    rows = grid(text, "movie_reviews")
    assert [row["recipe"] for row in rows] == ["movies", "movies model.pooling=mean"]
    assert [row["seeds"] for row in rows] == ["1 x 3 folds"] * 2
    assert rows[0]["test: accuracy, %"] == "80.00 (70.00 to 90.00)"
    assert text.count("## movie_reviews") == 1
    assert "- data: SHA-256 of the hashes of 3 folds " in text
    for changes in ("model.pooling=mean", "data.fold=2 --set model.pooling=mean"):
        assert f"`qkv train movies --set {changes} --set seed=SEED`, then `qkv evaluate RUN --split test" in text


def test_rows_with_different_folds_or_data_are_in_different_tables() -> None:
    complete = [fold(number, 0.8) for number in range(3)]
    some = [fold(number, 0.9, changes=("model.pooling=mean",)) for number in range(2)]
    other = [fold(0, 0.7, changes=("model.hidden=4",)), fold(1, 0.7, changes=("model.hidden=4",))]
    other.append(replace(other[1], data_hash="ff" * 32))
    text = page(*complete, *some, *other)
    assert text.count("## movie_reviews") == 2 + 3  # a fold with two hashes: each fold has its own table
    assert text.count("| movies model.hidden=4 |") == 3


def test_a_seed_with_missing_folds_is_not_averaged() -> None:
    complete = [fold(number, 0.8) for number in range(3)]
    text = page(*complete, fold(1, 0.1, seed=1))
    assert "3 folds" not in text
    assert text.count("## movie_reviews") == 3
    assert "- tested on fold 1\n" in text
    both = page(*complete, *(fold(number, 0.6, seed=1) for number in range(3)))
    assert grid(both, "movie_reviews")[0]["seeds"] == "2 x 3 folds"
    assert "- tested on fold 0, 1, 2\n" in both


def test_a_baseline_shows_its_own_command() -> None:
    text = page(*(fold(number, 0.5, command="python -m benchmarks.bag") for number in range(3)))
    assert "  - `python -m benchmarks.bag`, seed 0\n  - trained on" in text
    assert "qkv train" not in text


def test_folders_of_user_files_are_not_published() -> None:
    pairs = 'data.train=["/home/ann/a.en", "/home/ann/a.de"]'
    files = (pairs, r'data.test=["C:\\Users\\ann\\t.tsv"]', "model.hidden=4")
    text = page(record(recipe="pairs-gru", changes=files), record(recipe="pairs-gru", changes=files, seed=1))
    assert "ann" not in text
    assert '| pairs-gru data.train=["a.en", "a.de"] data.test=["t.tsv"] model.hidden=4, beam 5 |' in text
    assert '--set \'data.train=["a.en", "a.de"]\' --set \'data.test=["t.tsv"]\' --set model.hidden=4' in text


def test_init_is_shown_relative_to_the_runs_folder() -> None:
    text = page(record(changes=('init="/home/ann/runs/other-0"',)), record(30.0, changes=('init="/home/ann/minilm"',)))
    assert "ann" not in text
    assert "--set init=runs/other-0 --set seed=SEED" in text
    assert "--set init=minilm --set seed=SEED" in text


def test_validation_and_checkpoint_settings_are_not_part_of_the_label() -> None:
    changes = ("train.validate_every=50", "train.save_every=10", "train.keep=9", "train.lr=0.1")
    text = page(record(38.0, changes=changes), record(39.0, seed=1, changes=("train.keep=1", "train.lr=0.1")))
    (row,) = grid(text, "multi30k en to de")
    assert (row["recipe"], row["seeds"]) == ("multi30k-gru train.lr=0.1, beam 5", "2")
    assert f"qkv train multi30k-gru {' '.join(f'--set {change}' for change in changes)} --set seed=SEED" in text
    assert "qkv train multi30k-gru --set train.keep=1 --set train.lr=0.1 --set seed=SEED" in text


def test_text_cannot_break_out_of_its_cell() -> None:
    text = page(record(changes=('data.source="a|b\\n# c"',)))
    assert sum(line.startswith("|") for line in text.splitlines()) == 3
    assert "a\\|b" in text


@pytest.mark.parametrize("command", ["", "`<script>`"])
def test_records_cannot_inject_markup(command: str) -> None:
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    usual = page(record())
    hostile = "`<script>alert(1)</script><!-- \x1b | [a](javascript:b) ![c](d) \n# e\n\n|f|\n"
    texts = {field.name: hostile for field in fields(Record) if field.type is str} | {"task": "translate"}
    measure = Measure("bleu", 1.0, hostile)
    changed = record(**texts, changes=(f"data.source={hostile}",), metrics=(measure,))
    text = page(replace(changed, command=command))
    assert "<script" not in text
    assert "\x1b" not in text
    html = parser.render(text)
    assert set(re.findall(r"<(\w+)", html)) == set(re.findall(r"<(\w+)", parser.render(usual)))
    assert html.count("<h2") == 1
    assert html.count("<tr") == 2
    assert "alert(1)" in html


@pytest.mark.parametrize(
    ("values", "shown"), [([], ""), ([1.005], "1.00"), ([1.0, 2.0], "1.50 (1.00 to 2.00)"), ([-1.0], "-1.00")]
)
def test_a_single_value_has_no_range(values: list[float], shown: str) -> None:
    assert spread(values, 2) == shown

"""`qkv.evaluate`, `qkv.compare` and `qkv.view`: the same results as the commands, and details of each task."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import qkv
from qkv.cli.main import app
from qkv.errors import InputError
from qkv.experiments.results import read_records
from qkv.tasks.base.evaluation import Evaluation
from qkv.training.run import Run

metrics = pytest.importorskip("sklearn.metrics", reason="needs the package scikit-learn")

QUICK = {"device": "cpu", "quiet": True, "samples": 0, "log": (), "epochs": 2, "batch_size": 64}
TEXTS = [f"{mood} film number {number} <b>" for number in range(24) for mood in ("good", "bad", "dull")]
LABELS = [{"good": "<i>yes", "bad": "no", "dull": "no"}[text.split()[0]] for text in TEXTS]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("classifier")
    path = folder / "texts.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)))
    model = {"embedding_dim": 8, "hidden_dim": 8}
    options = {**QUICK, "model": model, "valid_size": 4, "output": folder / "run"}
    return qkv.train("polarity-lstm-mean", data=path, test=path, **options)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("translator")
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{number} may\t{number:02}-05\n" for number in range(1, 32)))
    model = {"embedding_dim": 8, "hidden_dim": 8}
    return qkv.train("pairs-gru", data=path, test=path, output=folder / "run", model=model, valid_size=4, **QUICK)


def test_details_of_a_classifier_equal_those_of_scikit_learn(classifier: Run):
    evaluation = qkv.evaluate(classifier, record=False, device="cpu")
    answers = qkv.Classifier(classifier, device="cpu")(TEXTS)
    predicted = [answer.label for answer in answers]
    expected = metrics.classification_report(LABELS, predicted, output_dict=True, zero_division=0)
    (table,) = evaluation.classes
    for row in table.rows:
        theirs = expected[row.name]
        assert (row.precision, row.recall, row.f1) == pytest.approx(
            (theirs["precision"], theirs["recall"], theirs["f1-score"])
        )
    counts = metrics.confusion_matrix(LABELS, predicted, labels=evaluation.confusion.labels)
    assert [list(row) for row in evaluation.confusion.counts] == counts.tolist()
    assert sum(part.count for part in evaluation.calibration.bins) == len(TEXTS)
    right = sum(answer.label == label for answer, label in zip(answers, LABELS, strict=True))
    assert evaluation.scores["accuracy"] == right / len(TEXTS)
    wrong = {
        text: answer.probabilities[label]
        for text, answer, label in zip(TEXTS, answers, LABELS, strict=True)
        if answer.label != label
    }
    worst = sorted(wrong.values())[: len(evaluation.mistakes)]
    assert [mistake.score for mistake in evaluation.mistakes] == pytest.approx(worst, abs=1e-5)
    assert all(wrong[mistake.source] == pytest.approx(mistake.score, abs=1e-5) for mistake in evaluation.mistakes)


def test_the_command_prints_the_same_as_text_json_and_page(classifier: Run, tmp_path: Path):
    run, page = str(classifier.folder), tmp_path / "page.html"
    command = ["evaluate", run, "--no-record", "--device", "cpu"]
    done = CliRunner().invoke(app, [*command, "--json", "--page", str(page)])
    assert done.exit_code == 0
    result = json.loads(done.stdout.splitlines()[0])
    expected = json.loads(json.dumps(qkv.evaluate(classifier, record=False, device="cpu").to_dict()))
    for key in ("accuracy", "classes", "confusion", "mistakes"):
        assert result[key] == expected[key]
    assert {"run", "split", "size", "signatures", "seconds"} <= result.keys()
    assert result["calibration"]["error"] == pytest.approx(expected["calibration"]["error"])
    html = page.read_text()
    assert "&lt;i&gt;yes" in html
    assert "<i>yes" not in html
    assert "<script" not in html
    assert "style=" not in html.partition("<body")[2]  # the policy of the page would block it
    printed = CliRunner().invoke(app, command).stdout
    for word in ("precision", "confusion matrix", "expected calibration error", "worst"):
        assert word in printed
    assert not (classifier.folder / "results.jsonl").exists()


def test_a_split_gives_one_evaluation_and_a_list_a_list(translator: Run):
    one = qkv.evaluate(translator, "valid", record=False, device="cpu")
    assert (one.split, one.size) == ("valid", len(translator.data().splits["valid"]))
    both = qkv.evaluate(translator, ["valid", "test"], record=False, device="cpu")
    assert [evaluation.split for evaluation in both] == ["valid", "test"]
    assert both[0].scores == one.scores
    assert len(repr(one)) < 250
    assert "worst" in str(one)
    low, high = both[1].intervals["chrf"]
    assert low <= both[1].scores["chrf"] <= high
    assert f"[{low:.3f}, {high:.3f}]" in both[1].shown("chrf")
    assert "exact match" in repr(one)
    scores = [mistake.score for mistake in both[1].mistakes]
    assert scores == sorted(scores)
    html = both[1]._repr_html_()
    assert "<script" not in html
    assert "95 %" in html


def test_notebooks_and_the_terminal_show_the_reported_metrics_and_dicts_all():
    evaluation = Evaluation(9, "pairs", {"bleu": 30.0, "chrf": 40.0}, reported=("chrf",))
    for shown in (str(evaluation), evaluation._repr_html_(), repr(evaluation)):
        assert "chrf" in shown
        assert "bleu" not in shown
    assert evaluation.to_dict()["bleu"] == 30


def test_models_and_networks_are_evaluated_on_own_files(classifier: Run, translator: Run, tmp_path: Path):
    path = tmp_path / "texts.tsv"
    path.write_text("good film\t<i>yes\nbad film\tno\n")
    network = qkv.load(classifier)
    by_run, by_network = (qkv.evaluate(model, data=path, device="cpu") for model in (classifier, network))
    assert by_run.scores == by_network.scores
    assert by_run.size == 2
    folder = classifier.checkpoints[-1]
    assert qkv.evaluate(folder, data=[path], device="cpu").scores == by_run.scores
    with pytest.raises(InputError, match="no dataset"):
        qkv.evaluate(network)
    with pytest.raises(InputError, match="num_beams"):
        qkv.evaluate(classifier, num_beams=2, device="cpu")
    with pytest.raises(InputError, match=r"did you mean num_beams\?"):
        qkv.evaluate(translator, beams=2)
    with pytest.raises(InputError, match="no dev split"):
        qkv.evaluate(translator, "dev", device="cpu")


def test_recorded_results_are_compared_and_draw_a_table(translator: Run, classifier: Run):
    with pytest.raises(InputError, match=r"qkv\.evaluate"):
        qkv.compare(translator)
    qkv.evaluate(translator, record=False, device="cpu")
    assert not (translator.folder / "results.jsonl").exists()
    evaluation = qkv.evaluate(translator, device="cpu")
    (record,) = read_records(translator.folder)
    assert {measure.name: measure.value for measure in record.metrics} == pytest.approx(dict(evaluation.scores))
    comparison = qkv.compare(translator)
    assert comparison.rows[0]["run"] == "run"
    assert "parameters" in repr(comparison)
    assert "\x1b" not in repr(comparison)
    assert "<table>" in comparison._repr_html_()
    assert repr(qkv.compare([translator])) == repr(comparison)
    with pytest.warns(UserWarning, match="without results"):
        assert repr(qkv.compare(translator, classifier)) == repr(comparison)
    with pytest.raises(InputError, match="runs to compare"):
        qkv.compare()
    with pytest.raises(InputError, match=r"did you mean seeds\?"):
        qkv.compare(translator, seed=3)


@pytest.mark.slow
def test_variants_of_a_recipe_are_trained_and_compared(tmp_path: Path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{number} may\t{number:02}-05\n" for number in range(1, 32)))
    overrides = {
        "data": {"train": [path], "valid": [path]}, "model": {"hidden_dim": 8, "embedding_dim": 8, "max_length": 12},
        "train": {"epochs": 1, "batch_size": 512, "valid_size": 5},
    }  # fmt: skip
    comparison = qkv.compare(
        "pairs-gru", vary={"model.score.name": ["dot", "additive"]}, seeds=1, overrides=overrides,
        output=tmp_path / "sweep", workers=1, device="cpu",
    )  # fmt: skip
    assert [row.label for row in comparison.result.rows("exact")] == ["score=dot", "score=additive"]
    assert "additive" in repr(comparison)
    assert "additive" in comparison._repr_html_()


def test_a_view_is_a_page_in_a_frame_or_a_file(translator: Run, tmp_path: Path):
    view = qkv.view(translator, "5 may", device="cpu")
    assert view.answers[0].source == "5 may"
    html = view._repr_html_()
    assert html.startswith('<iframe sandbox="allow-scripts')
    assert "<script" not in html.replace("&lt;", "")  # the page is an attribute, and escaped
    page = view.save(tmp_path / "page.html")
    assert "5 may" in page.read_text()
    network = qkv.load(translator)
    assert [answer.text for answer in qkv.view(network, ["5 may", "6 may"]).answers] == [
        answer.text for answer in qkv.Translator(network)(["5 may", "6 may"])
    ]
    assert len(qkv.view(translator, count=3, device="cpu").answers) == 3
    assert len(repr(view)) < 250
    with pytest.raises(InputError, match="pass inputs"):
        qkv.view(network)
    with pytest.raises(InputError, match=r"did you mean head\?"):
        qkv.view(translator, "5 may", heads=1)
    with pytest.raises(InputError, match="layer"):
        qkv.view(translator, "5 may", layer="encoder", device="cpu")


def test_rows_and_data_frames_are_evaluated_like_files(classifier: Run, tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    rows = [{"text": "good film", "label": "yes"}, {"text": "bad film", "label": "no"}]
    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"{row['text']}\t{row['label']}\n" for row in rows))
    expected = qkv.evaluate(classifier, data=path, device="cpu").scores
    assert qkv.evaluate(classifier, data=rows, device="cpu").scores == expected
    assert qkv.evaluate(classifier, data=pandas.DataFrame(rows), device="cpu").scores == expected
    with pytest.raises(InputError, match="not a list of int"):
        qkv.evaluate(classifier, data=[1], device="cpu")
    with pytest.raises(InputError, match="not a Series"):
        qkv.evaluate(classifier, data=pandas.DataFrame(rows)["text"], device="cpu")


def test_a_dataset_is_evaluated_like_its_rows_and_of_several_splits_one_is_to_be_chosen(classifier: Run):
    datasets = pytest.importorskip("datasets")
    rows = [{"text": "good film", "label": "yes"}, {"text": "bad film", "label": "no"}]
    dataset = datasets.Dataset.from_list(rows)
    result = qkv.evaluate(classifier, data=dataset, device="cpu")
    assert result.scores == qkv.evaluate(classifier, data=rows, device="cpu").scores
    assert result.split == "data"
    with pytest.raises(InputError, match="'test'"):
        qkv.evaluate(classifier, data=datasets.DatasetDict(train=dataset, test=dataset), device="cpu")


def test_the_limit_selects_the_first_examples_of_any_task(classifier: Run):
    answers = qkv.Classifier(classifier, device="cpu")(TEXTS[:5])
    right = sum(answer.label == label for answer, label in zip(answers, LABELS, strict=False))
    evaluation = qkv.evaluate(classifier, record=False, limit=5, device="cpu")
    assert (evaluation.size, evaluation.scores["accuracy"]) == (5, right / 5)
    whole = qkv.evaluate(classifier, record=False, device="cpu")
    assert evaluation.amount == f"5 of {whole.size} texts"
    assert f'<p dir="auto">5 of {whole.size} texts of test</p>' in evaluation._repr_html_()
    assert evaluation.to_dict()["split_size"] == whole.size
    assert whole.amount == qkv.evaluate(classifier, record=False, limit=10_000, device="cpu").amount
    assert whole.amount == f"{whole.size} texts"

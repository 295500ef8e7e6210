"""`qkv evaluate` records results, and `qkv compare` turns the records into tables."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.datasets.dataset import PairDataset, TextDataset
from qkv.datasets.examples.pair import Pair
from qkv.experiments.results import RESULTS, append_record, read_records
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, write_manifest
from qkv.registry import lookup
from qkv.training import job
from qkv.training.recipe import read_recipe
from tests.experiments.records import record

from .command import Ended

Command = Callable[..., Ended]
PAIRS = "".join(f"{word} {number}\t{number} {word} a b\n" for word in ("eins", "zwei") for number in range(6))
SIZES = ["data.name=pairs", "model.hidden_dim=4", "model.embedding_dim=4", "model.max_length=12", "train.epochs=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a few word pairs; its outputs are meaningless."""
    folder = tmp_path_factory.mktemp("words")
    files = {}
    for split in ("train", "valid", "test"):
        (folder / f"{split}.tsv").write_text(PAIRS)
        files[split] = f"data.{split}={json.dumps([str(folder / f'{split}.tsv')])}"
    recipe = read_recipe("pairs-gru", [*SIZES, *files.values(), "seed=1"])
    return job.begin(recipe, folder / "run", "cpu").run.folder


@pytest.fixture
def run(trained: Path) -> Iterator[Path]:
    """The run without results."""
    yield trained
    (trained / RESULTS).unlink(missing_ok=True)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two seeds of a recipe, without weights."""
    monkeypatch.chdir(tmp_path)
    folders = [Path("runs/multi30k-gru-0"), Path("runs/multi30k-gru-1")]
    for seed, folder in enumerate(folders):
        folder.mkdir(parents=True)
        for split in ("test_2016_flickr", "test_2017_flickr"):
            append_record(folder, record(38.0 + seed, seed=seed, split=split))
    return [str(folder) for folder in folders]


def test_a_split_is_recorded_with_everything_needed_to_reproduce_it(qkv: Command, run: Path) -> None:
    ended = qkv("evaluate", run, "--num-beams", 2, "--length-penalty", 0.5, "--json")
    assert ended.err == f"recorded in {run}/{RESULTS}\n"
    report = json.loads(ended.out)
    (kept,) = read_records(run)
    assert (kept.recipe, kept.seed, kept.task, kept.model) == ("pairs-gru", 1, "translate", "rnn_seq2seq")
    assert "model.hidden_dim=4" in kept.changes
    assert (kept.data, kept.split, kept.size, kept.left_out) == ("pairs", "test", 12, 0)
    assert (kept.beam, kept.length_penalty, kept.finished) == (2, 0.5, True)
    assert len(kept.data_hash) == len(kept.source_hash) == 64
    (checkpoint,) = run.glob("step-*")
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    assert (kept.steps, kept.data_hash) == (manifest["state"]["step"], manifest["data"])
    assert kept.minutes == pytest.approx(manifest["state"]["seconds"] / 60, abs=1e-3)
    assert kept.parameters == sum(weight.numel() for weight in load_file(checkpoint / "model.safetensors").values())
    for name in ("exact", "cer", "bleu", "bleu_lowercased", "chrf"):
        assert kept.score(name).value == pytest.approx(report[name])
        assert kept.score(name).signature == report["signatures"].get(name, "")
    for name in ("rouge_1", "rouge_2", "rouge_l"):
        assert kept.score(name).value == pytest.approx(report[name])
        assert kept.score(name).signature == report["signatures"][name] != ""
    assert sum(bucket.pairs for bucket in kept.by_length) == 12


def test_user_pairs_are_also_scored_with_rouge(qkv: Command, run: Path) -> None:
    shown = qkv("evaluate", run).out
    assert [line.split()[0] for line in shown.splitlines() if "ROUGE" in line] == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
    assert "| test: ROUGE-1, % | test: ROUGE-2, % | test: ROUGE-L, % |" in qkv("compare", run).out
    other = json.loads(qkv("evaluate", run, "--data", run.parent / "test.tsv", "--json").out)
    assert other["rouge_l"] == pytest.approx(read_records(run)[-1].score("rouge_l").value)


def test_training_and_evaluation_environments_are_recorded_separately(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [*SIZES, "train.precision=bfloat16"]
    for split in ("train", "valid", "test"):
        Path(f"{split}.tsv").write_text(PAIRS)
        settings.append(f'data.{split}=["{split}.tsv"]')
    sets = [word for setting in settings for word in ("--set", setting)]
    with monkeypatch.context() as patch:
        patch.setattr("qkv.runtime.provenance.device_name", lambda device: "a workstation")
        patch.setattr("qkv.runtime.provenance.commit", lambda: "a" * 40)
        patch.setattr("qkv.runtime.provenance.source_hash", lambda: "b" * 64)
        assert qkv("train", "pairs-gru", *sets, "--output", "run", "--device", "cpu").code == 0
        assert qkv("evaluate", "run", "--device", "cpu").code == 0
        here = "trained on a workstation in bfloat16, torch "
        same = qkv("compare", "run").out
        assert here in same
        assert "commit aaaaaaaaaaaa (source bbbbbbbbbbbb), " in same
        assert "evaluated on" not in same
    monkeypatch.setattr("qkv.runtime.provenance.device_name", lambda device: "a laptop")
    monkeypatch.setattr("qkv.runtime.provenance.commit", lambda: "c" * 40)
    assert qkv("evaluate", "run", "--device", "cpu").code == 0
    kept = read_records(Path("run"))[-1]
    assert (kept.trained_on, kept.precision, kept.graphs) == ("a workstation", "bfloat16", False)
    assert (kept.trained_commit, kept.trained_source_hash) == ("a" * 40, "b" * 64)
    assert (kept.device, kept.commit, kept.trained_torch) == ("a laptop", "c" * 40, kept.torch)
    page = qkv("compare", "run").out
    assert "commit aaaaaaaaaaaa (source bbbbbbbbbbbb); evaluated on a laptop, torch" in page
    assert str(tmp_path) not in page  # absolute paths of user files are not published
    assert "--set 'data.train=[\"train.tsv\"]'" in page


def test_a_run_resumed_on_another_device_names_both(qkv: Command, run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    (checkpoint,) = again.glob("step-*")
    manifest = read_manifest(checkpoint)
    del manifest["sha256"]
    (checkpoint / MANIFEST_FILE).unlink()
    here = manifest["state"]["devices"]
    unfinished = manifest["state"] | {"finished": False, "devices": ["a workstation"]}
    write_manifest(checkpoint, manifest | {"state": unfinished})
    early = qkv("evaluate", again, "--device", "cpu").err
    assert early.endswith(f"{RESULTS} (training is not finished: step {manifest['state']['step']:,})\n")
    assert qkv("train", "--resume", again, "--device", "cpu").code == 0
    assert qkv("evaluate", again, "--device", "cpu").code == 0
    assert read_records(again)[-1].trained_on == f"a workstation and then {here[0]}"


def test_a_user_recipe_is_recorded_by_the_name_of_its_file(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text(PAIRS)
    Path("mine.toml").write_text(
        'task = "translate"\ntrain = { epochs = 1 }\n'
        'data = { name = "pairs", train = ["pairs.tsv"], test = ["pairs.tsv"] }\n'
        'model = { name = "rnn_seq2seq", hidden_dim = 4, embedding_dim = 4 }\n'  # no dropout, unlike built-in ones
    )
    assert qkv("train", "mine.toml", "--output", "mine", "--device", "cpu").code == 0
    assert qkv("evaluate", "mine", "--num-beams", 2).code == 0
    (kept,) = read_records(Path("mine"))
    assert (kept.recipe, kept.changes) == ("mine.toml", ())
    page = qkv("compare", "mine").out
    assert "| mine.toml, beam 2 |" in page
    assert "`qkv train mine.toml --set seed=SEED`, then `qkv evaluate RUN --split test --num-beams 2`" in page


def test_partial_evaluations_are_not_recorded(qkv: Command, run: Path) -> None:
    (checkpoint,) = run.glob("step-*")
    for arguments in (
        [run, "--limit", 2],
        [run, "--data", run.parent / "test.tsv"],
        [run, "--no-record"],
        [checkpoint],
    ):
        ended = qkv("evaluate", *arguments)
        assert (ended.code, "recorded" in ended.err) == (0, False)
    assert not (run / RESULTS).exists()


def test_duplicate_splits_are_scored_once(qkv: Command, run: Path) -> None:
    ended = qkv("evaluate", run, "--split", "all-tests", "--split", "valid", "--split", "test", "--json")
    assert [json.loads(line)["split"] for line in ended.out.splitlines()] == ["test", "valid"]
    assert [record.split for record in read_records(run)] == ["test", "valid"]
    assert "no dev split" in qkv("evaluate", run, "--split", "dev").error


def test_out_writes_the_outputs_in_order(qkv: Command, run: Path, tmp_path: Path) -> None:
    assert qkv("evaluate", run, "--output", tmp_path / "answers.txt", "--no-record").code == 0
    sources = [line.split("\t")[0] for line in PAIRS.splitlines()]
    assert (tmp_path / "answers.txt").read_text() == qkv("translate", run, *sources).out
    both = ["--split", "test", "--split", "valid", "--output", tmp_path / "both.txt"]
    assert "--output" in qkv("evaluate", run, *both).error
    assert not (tmp_path / "both.txt").exists()


def test_a_dictionary_is_scored_by_phoneme_and_word_error_rate(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [Pair("ab", "K AE1"), Pair("ba", "T K"), Pair("ab", "T AE1")]
    loaded = PairDataset({"train": entries, "valid": entries, "test": entries}, pronunciations=True)
    monkeypatch.setattr(lookup("dataset", "cmudict"), "read", lambda _: loaded)
    sizes = [*SIZES, "data.name=cmudict", "data.target_tokenizer=word"]
    job.begin(read_recipe("pairs-gru", sizes), tmp_path / "run", "cpu")
    ended = qkv("evaluate", tmp_path / "run", "--json")
    report = json.loads(ended.out)
    assert report["size"] == 3
    assert "phoneme error rate" in qkv("evaluate", tmp_path / "run", "--no-record").out
    (kept,) = read_records(tmp_path / "run")
    assert (kept.data, kept.score("per").value, kept.score("wer").value) == ("cmudict", report["per"], report["wer"])
    assert "| test: phoneme error rate, % | test: word error rate, % |" in qkv("compare", tmp_path / "run").out


def test_a_language_model_is_scored_on_held_out_text(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = TextDataset({"train": "to be or not to be " * 8, "valid": "to be or not to be " * 4})
    monkeypatch.setattr(lookup("dataset", "tinyshakespeare"), "read", lambda _: loaded)
    sizes = ["model.layers=1", "model.embedding_dim=4", "model.hidden_dim=8", "train.epochs=1", "train.batch_size=64",
             "task.length=16"]  # fmt: skip
    done = job.begin(read_recipe("shakespeare-lstm", sizes), tmp_path / "run", "cpu")
    ended = qkv("evaluate", tmp_path / "run", "--json")
    report = json.loads(ended.out)
    assert (report["split"], report["size"]) == ("valid", 76)
    assert report["loss"] == pytest.approx(done.state.best.value, rel=1e-5)
    assert report["nats"] == pytest.approx(report["loss"])  # tokens are characters
    (kept,) = read_records(tmp_path / "run")
    assert (kept.task, kept.split, kept.size, kept.recipe) == ("language_model", "valid", 76, "shakespeare-lstm")
    assert kept.score("nats").value == pytest.approx(report["nats"])
    assert f"| {report['nats']:.4f} |" in qkv("compare", tmp_path / "run").out
    assert "no train split" in qkv("evaluate", tmp_path / "run", "--split", "train").error
    assert "limit" in qkv("evaluate", tmp_path / "run", "--limit", 5).error


def test_a_checkpoint_is_scored_itself_and_not_recorded(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = TextDataset({"train": "to be or not to be " * 20, "valid": "to be or not to be " * 4})
    monkeypatch.setattr(lookup("dataset", "tinyshakespeare"), "read", lambda _: loaded)
    sizes = ["model.layers=1", "model.embedding_dim=4", "model.hidden_dim=8", "train.epochs=1", "train.batch_size=64",
             "task.length=16", "train.lr=0.1", "train.validate_every=1", "train.save_every=1",
             "train.keep=50"]  # fmt: skip
    done = job.begin(read_recipe("shakespeare-lstm", sizes), tmp_path / "run", "cpu")
    lines = map(json.loads, (tmp_path / "run" / "log.jsonl").open())
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "valid"}
    assert len(set(losses.values())) == len(done.run.checkpoints) > 2
    for checkpoint in done.run.checkpoints:
        ended = qkv("evaluate", checkpoint, "--json")
        report = json.loads(ended.out)
        assert report["run"] == str(checkpoint)
        assert report["loss"] == pytest.approx(losses[int(checkpoint.name.removeprefix("step-"))], rel=1e-5)
    assert not (tmp_path / "run" / RESULTS).exists()


def test_compare_merges_seeds_and_needs_no_weights(qkv: Command, runs: list[str]) -> None:
    ended = qkv("compare", *runs)
    assert (ended.code, ended.err) == (0, "")
    assert "Generated by `qkv compare runs/*`" in ended.out
    (row,) = [line for line in ended.out.splitlines() if line.startswith("| multi30k-gru")]
    assert row.count("38.50 (38.00 to 39.00)") == 2  # two test sets
    assert qkv("compare", *runs, "--output", "docs/results.md").out == "docs/results.md\n"
    page = Path("docs/results.md").read_text()
    assert page.replace(" --output docs/results.md", "") == ended.out


def test_the_command_line_uses_a_glob_only_for_all_runs_of_a_folder(
    qkv: Command, runs: list[str], tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "runs", tmp_path / "a b")
    names = [path.name for path in (tmp_path / "a b").iterdir()]
    assert "Generated by `qkv compare 'a b'/*`" in qkv("compare", *(f"a b/{name}" for name in names)).out
    with_slashes = qkv("compare", *(f"./a b/{name}/" for name in names), "--output", "page.md")
    assert "Generated by `qkv compare 'a b'/* --output page.md`" in Path(with_slashes.out.strip()).read_text()
    Path("a b/another").mkdir()
    assert "/*" not in qkv("compare", *(f"a b/{name}" for name in names)).out
    assert "/*" not in qkv("compare", runs[0]).out


def test_compare_writes_a_figure_and_links_it(qkv: Command, runs: list[str]) -> None:
    pytest.importorskip("matplotlib")
    figure = ["--by-length", "pictures/figure.svg", "--split", "test_2017_flickr"]
    ended = qkv("compare", *runs, "--output", "docs/results.md", *figure)
    assert ended.err == "figure: pictures/figure.svg\n"
    assert "test_2017_flickr" in Path("pictures/figure.svg").read_text()
    assert "](../pictures/figure.svg)" in Path("docs/results.md").read_text()
    assert ".png or .svg" in qkv("compare", *runs, "--by-length", "x.pdf").error
    assert "train" in qkv("compare", *runs, "--by-length", "x.png", "--split", "train").error
    assert "--by-length" in qkv("compare", *runs, "--split", "test").error


def test_a_run_that_is_given_twice_counts_once(qkv: Command, runs: list[str]) -> None:
    ended = qkv("compare", *runs, f"./{runs[0]}/")
    assert (ended.code, ended.err) == (0, "")
    once, twice = (qkv("compare", *folders, "--json").out for folders in (runs, [*runs, *runs]))
    assert once == twice


@pytest.mark.parametrize(
    "option", [("--seeds", "5"), ("--set", "seed=1"), ("--ray-address", "x:1"), ("--force",), ("--device", "cpu")]
)
def test_options_of_sweeps_require_vary(option: tuple[str, ...], qkv: Command, runs: list[str]) -> None:
    error = qkv("compare", *runs, *option).error
    assert error.startswith(option[0])
    assert "--vary" in error


def test_compare_prints_the_records_as_json(qkv: Command, runs: list[str]) -> None:
    ended = qkv("compare", runs[0], "--json")
    assert ended.out == Path(runs[0], RESULTS).read_text()


def test_compare_names_invalid_folders(qkv: Command, tmp_path: Path) -> None:
    assert qkv("compare", tmp_path / "none").error == f"{tmp_path}/none: no such folder"
    assert f"qkv evaluate {tmp_path}" in qkv("compare", tmp_path).error
    append_record(tmp_path, record())
    assert f"{tmp_path.parent}/*" in qkv("compare", tmp_path.parent).error
    (tmp_path / RESULTS).write_text('{"recipe": "x"')
    assert qkv("compare", tmp_path).error.startswith(f"{tmp_path}/{RESULTS}: line 1")
    (tmp_path / RESULTS).write_text('{"recipe": "x"}\n')
    assert qkv("compare", tmp_path).error.startswith(f"{tmp_path}/{RESULTS}: line 1")
    assert "Missing argument 'RUN...'" in qkv("compare").error


def test_runs_without_results_are_skipped_and_named(qkv: Command, runs: list[str]) -> None:
    Path("runs/new").mkdir()
    Path("runs/new/recipe.toml").write_text("")
    ended = qkv("compare", *runs, "runs/new")
    assert ended.err.startswith("note: skipped 1 run(s)")
    assert "38.50 (38.00 to 39.00)" in ended.out
    assert "qkv evaluate" in qkv("compare", "runs/new").error


def test_evaluate_names_invalid_run_folders(qkv: Command, runs: list[str]) -> None:
    assert qkv("evaluate", "nowhere").error.startswith("nowhere: no such folder")
    Path(runs[0], "recipe.toml").write_text("")
    assert "not a training run" in qkv("evaluate", "runs").error

"""The commands: output streams, text and JSON output, and exit codes."""

import html
import json
import os
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from qkv.cli.commands import demo
from qkv.cli.main import app
from qkv.datasets.corpora.synthetic import dates
from qkv.datasets.corpora.synthetic.dates import generate
from qkv.errors import NotFinite
from qkv.registry import registered

from .command import TINY, Ended

Command = Callable[..., Ended]
TEXTS = ["5 March 2026", "Donnerstag, 5. März 2026"]


def objects(text: str) -> list[dict[str, Any]]:
    def reject(constant: str) -> None:
        raise AssertionError(f"{constant} is not valid JSON")

    return [json.loads(line, parse_constant=reject) for line in text.splitlines()]


def options_of(command: Any) -> list[str]:
    return sorted(option for parameter in command.params for option in parameter.opts if option.startswith("-"))


def test_every_task_names_an_existing_command() -> None:
    assert {task.cli_command for task in registered("task").values()} <= typer.main.get_command(app).commands.keys()


def test_commands_and_options() -> None:
    groups = ("data", "recipes", "models", "claims")
    commands = typer.main.get_command(app).commands
    options = {name: options_of(command) for name, command in commands.items() if name != "data"}
    options |= {
        f"{group} {name}": options_of(command) for group in groups for name, command in commands[group].commands.items()
    }
    assert all("--plugin" in names for name, names in options.items() if name != "recipes")
    assert {name: [option for option in names if option != "--plugin"] for name, names in options.items()} == {
        "demo": ["--device", "--json", "--output"],
        "train": [
            "--chart", "--column", "--data", "--data-dir", "--device", "--dry-run", "--force", "--json", "--log",
            "--output", "--overwrite", "--profile", "--resume", "--samples", "--set", "--strict",
            "--strict-resume", "--test", "--valid",
        ],
        "evaluate": [
            "--column", "--data", "--device", "--json", "--length-penalty", "--limit", "--no-record", "--num-beams",
            "--output", "--page", "--split", "--strict",
        ],
        "explain": [
            "--against", "--column", "--device", "--document", "--faithfulness", "--input", "--json", "--layers",
            "--limit", "--method", "--output", "--page", "--seed", "--split", "--steps", "--target", "--top", "--unit",
        ],
        "compare": [
            "--by-length", "--data-dir", "--device", "--force", "--json", "--metric", "--output", "--ray",
            "--ray-address", "--seeds", "--set", "--split", "--vary", "--workers",
        ],
        "translate": [
            "--align", "--align-level", "--alignment-threshold", "--batch-size", "--column", "--coverage-penalty",
            "--device",
            "--do-sample", "--dtype", "--exact", "--input", "--json", "--length-penalty", "--mark-copied",
            "--max-new-tokens", "--min-new-tokens", "--num-beams", "--num-return-sequences", "--output", "--overwrite",
            "--page", "--prefix", "--ray", "--ray-address", "--resume", "--seed", "--strict", "--target",
            "--temperature", "--top-k", "--top-p", "--verbose", "--workers", "-v",
        ],
        "generate": [
            "--assistant-model", "--batch-size", "--column", "--device", "--document", "--dtype", "--input", "--json",
            "--max-new-tokens", "--num-return-sequences", "--output", "--overwrite", "--prompt-lookup", "--ray",
            "--ray-address", "--resume", "--seed", "--temperature", "--top-k", "--top-p", "--verbose", "--wav",
            "--workers", "-v",
        ],
        "chat": [
            "--attention", "--column", "--device", "--dtype", "--history-tokens", "--history-turns", "--input",
            "--json", "--max-new-tokens", "--output", "--page", "--seed", "--temperature", "--top-k", "--top-p",
        ],
        "classify": [
            "--batch-size", "--column", "--device", "--document", "--input", "--json", "--output", "--strict",
            "--top-k",
        ],
        "tag": ["--batch-size", "--column", "--device", "--input", "--json", "--output", "--strict"],
        "parse": [
            "--batch-size", "--column", "--device", "--draw", "--input", "--json", "--length-penalty", "--num-beams",
            "--num-return-sequences", "--output", "--page", "--strict", "--tokenized",
        ],
        "answer": [
            "--batch-size", "--device", "--input", "--json", "--max-answer-tokens", "--output", "--question",
            "--stride", "--text", "--top-k",
        ],
        "caption": [
            "--batch-size", "--column", "--device", "--input", "--json", "--length-penalty", "--max-new-tokens",
            "--num-beams", "--num-return-sequences", "--output", "--page", "--png",
        ],
        "transcribe": [
            "--batch-size", "--column", "--device", "--input", "--json", "--length-penalty", "--max-new-tokens",
            "--num-beams", "--output", "--stream",
        ],
        "fill": ["--batch-size", "--column", "--device", "--input", "--json", "--output", "--strict", "--top-k"],
        "embed": [
            "--batch-size", "--column", "--device", "--input", "--json", "--normalize", "--output", "--pooling",
            "--strict",
        ],
        "convert": ["--dtype", "--json", "--to"],
        "view": [
            "--column", "--compare", "--count", "--device", "--document", "--full", "--head", "--input", "--json",
            "--layer", "--max-new-tokens", "--num-beams", "--open", "--page", "--png",
        ],
        "recipes": ["--json"],
        "recipes show": ["--json", "--set"],
        "models": ["--json"],
        "models show": ["--json"],
        "models download": ["--from", "--json"],
        "models package": ["--dtype", "--example", "--json", "--max-size", "--note", "--num-beams"],
        "serve": [
            "--access-log", "--api-keys", "--batch-all", "--device", "--dtype", "--host", "--max-batch", "--max-body",
            "--max-inputs", "--max-queue", "--max-tokens", "--port", "--timeout",
        ],
        "claims": ["--json", "--output"],
        "claims show": ["--json", "--output"],
        "claims run": [
            "--all", "--device", "--first-seed", "--json", "--output", "--resume", "--scale", "--seeds", "--workers",
        ],
        "claims figure": ["--device", "--json", "--output", "--png", "--seed"],
        "claims report": ["--json", "--output"],
        "data list": ["--data-dir", "--json"],
        "data baseline": ["--data-dir", "--json", "--output", "--sentences", "--split"],
        "data prepare": ["--data", "--json", "--rebuild", "--set", "--verify", "--workers"],
        "data shards": ["--json"],
        "data fetch": ["--data-dir", "--json"],
        "data check": ["--column", "--count", "--json", "--recipe", "--set", "--task", "--test", "--valid"],
        "data features": ["--backbone", "--data-dir", "--json", "--output", "--side"],
        "data show": ["--count", "--data-dir", "--json", "--kind", "--languages", "--output", "--split"],
    }  # fmt: skip


def test_help_and_version_go_to_stdout(qkv: Command) -> None:
    for arguments in (["--help"], ["-h"], ["train", "--help"], ["data", "show", "--help"]):
        ended = qkv(*arguments)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith("Usage: qkv")
    assert qkv("--version").out == "qkv 0.1.0\n"


@pytest.mark.parametrize("command", ["view", "evaluate", "explain", "classify", "data show"])
def test_help_has_no_technical_bounds(qkv: Command, command: str) -> None:
    assert "x<=1073741824" not in qkv(*command.split(), "--help").out


def test_counts_are_checked(qkv: Command, run: Path) -> None:
    for value in ("0", "-3", "many", str(2**40)):
        assert "--limit" in qkv("evaluate", run, f"--limit={value}").error


def test_without_a_command_help_goes_to_stderr_with_exit_code_2(qkv: Command) -> None:
    for arguments in ([], ["data"]):
        ended = qkv(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("Usage: qkv")


def test_arguments_file_and_stdin_give_the_same_output(qkv: Command, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{text}\r\n" for text in TEXTS), encoding="utf-8")
    by_arguments = qkv("translate", run, *TEXTS)
    assert by_arguments.out.count("\n") == 2
    assert qkv("translate", run, "--input", file) == by_arguments
    assert qkv("translate", run, stdin=file.read_bytes()) == by_arguments
    assert qkv("translate", run, stdin=b"\xef\xbb\xbf" + file.read_bytes().replace(b"\r", b"")) == by_arguments


def test_json_has_scores_and_alignments_whose_rows_sum_to_one(qkv: Command, run: Path) -> None:
    ended = qkv("translate", run, *TEXTS, "--num-beams", 3, "--num-return-sequences", 2, "--json")
    answers = objects(ended.out)
    assert [(answer["input"], answer["rank"]) for answer in answers] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for answer in answers:
        assert answer["source"] == TEXTS[answer["input"] - 1]
        assert "".join(answer["target_tokens"]) == answer["text"]
        assert "".join(answer["source_tokens"]) == answer["source"]
        assert answer["score"] < 0
        assert len(answer["alignment"]) == len(answer["target_tokens"])
        for row in answer["alignment"]:
            assert len(row) == len(answer["source_tokens"])
            assert sum(row) == pytest.approx(1, abs=1e-3)
    assert answers[0]["score"] >= answers[1]["score"]


def test_n_best_output_has_number_rank_and_score(qkv: Command, run: Path) -> None:
    rows = [
        line.split("\t")
        for line in qkv("translate", run, *TEXTS, "--num-beams", 2, "--num-return-sequences", 2).out.splitlines()
    ]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    assert all(float(row[2]) < 0 for row in rows)


def test_empty_lines_keep_the_line_count(qkv: Command, run: Path) -> None:
    lines = ["", TEXTS[0], "  ", TEXTS[1]]
    data = "\n".join(lines).encode()
    ended = qkv("translate", run, stdin=data)
    answers = ended.out.split("\n")
    assert [bool(answer) for answer in answers] == [False, True, False, True, False]
    assert ended.err.startswith("note: 2 empty line(s)")
    found = objects(qkv("translate", run, "--json", stdin=data).out)
    assert [answer["input"] for answer in found] == [1, 2, 3, 4]
    assert [answer["text"] for answer in found] == answers[:4]
    assert qkv("translate", run, "-", stdin=data).out == ended.out
    assert qkv("translate", run, "--strict", stdin=data).error.startswith("input 1 is empty")
    assert qkv("translate", run, TEXTS[0], "").error == "input 2 is empty"
    assert qkv("translate", run, "", TEXTS[0], "").error == "input 1 is empty and 1 more"
    assert "did you mean --num-beams?" in qkv("translate", run, TEXTS[0], "--beam", 5).error
    assert "did you mean --input?" in qkv("translate", run, "--file", "x").error
    assert "did you mean --set train.batch_size=...?" in qkv("train", "dates-gru", "--batch-size", 3).error
    assert "did you mean --input?" in qkv("translate", run, "-i", "x").error
    assert "did you mean --output?" in qkv("train", "dates-gru", "--output_dir", "x").error
    assert "did you mean --max-new-tokens?" in qkv("translate", run, "--max_length", 3).error
    assert "did you mean --set train.lr=...?" in qkv("train", "dates-gru", "--learning-rate", 3).error
    assert "did you mean" not in qkv("translate", run, "--epochs", 3).error
    for option in ("--output", "--out", "--html"):
        assert "did you mean --page?" in qkv("view", run, TEXTS[0], option, "page.html").error
    assert "--help?" not in qkv("train", "--model", "bert").error
    assert "single target language" in qkv("translate", run, TEXTS[0], "--target", "fr").error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--num-return-sequences", 3, "--num-beams", 2], "--num-return-sequences"),
        (["x", "--length-penalty", "nan"], "--length-penalty"),
        (["x", "--device", "gpu"], "'gpu'"),
        (["x", "--device", "cuda:77"], "'cuda:77'"),
        (["x", "--num-beams", "0"], "--num-beams"),
        (["x", "--input", "y"], "--input"),
        (["--input", "none.txt"], "none.txt: no such file"),
        ([], "standard input: "),
        (["5 M\udce4rz"], "argument 3 is not UTF-8"),
    ],
)
def test_translate_rejects_invalid_arguments(qkv: Command, run: Path, arguments: list[object], words: str) -> None:
    assert words in qkv("translate", run, *arguments).error


def test_stdin_that_is_not_utf8_is_an_error_with_the_offset(qkv: Command, run: Path) -> None:
    words = "standard input: not UTF-8 at byte 7"
    assert qkv("translate", run, stdin=b"5 May\nM\xe4rz\n").error.startswith(words)


def test_a_folder_without_a_model_is_an_error(qkv: Command, tmp_path: Path) -> None:
    assert qkv("translate", tmp_path / "none", "x").error == f"{tmp_path}/none: no such folder"
    assert "saved model" in qkv("view", tmp_path, "x").error
    assert "not a training run" in qkv("evaluate", tmp_path).error


def test_a_closed_stdout_ends_the_command_quietly(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "many.txt"
    file.write_text("5 March 2026\n" * 3000)
    command = [sys.executable, "-m", "qkv", "translate", str(run), "--input", str(file)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    assert writer.stdout.readline().endswith(b"\n")
    writer.stdout.close()
    assert (writer.wait(timeout=120), writer.stderr.read()) == (0, b"")
    writer.stderr.close()


def test_unencodable_characters_are_escaped() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "qkv", "data", "show", "dates", "--count", "200"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0
    assert b"\\u043c" in done.stdout  # the first letter of "марта"


def test_evaluate_prints_a_table_or_json(qkv: Command, run: Path) -> None:
    ended = qkv("evaluate", run, "--limit", 20)
    assert ended.code == 0
    assert f"{run}: 20 " in ended.err
    names = ("exact match", "character error rate", "alignment accuracy", "speed")  # those of the dataset's tables
    assert [line.split("  ")[0] for line in ended.out.partition("\n\n")[0].splitlines()] == list(names)
    (report,) = objects(qkv("evaluate", run, "--limit", 20, "--json", "--split", "valid").out)
    assert (report["split"], report["size"]) == ("valid", 20)
    assert 0 <= report["exact"] <= 1
    assert 0 <= report["alignment"] <= 1
    assert "tok:13a" in report["signatures"]["bleu"]


def test_evaluate_scores_user_files_and_notes_skipped_lines(qkv: Command, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.tsv"
    file.write_text("5 March 2026\t2026-03-05\n\n5 ☃\t2026-03-05\n", encoding="utf-8")
    ended = qkv("evaluate", run, "--data", file, "--json")
    (report,) = objects(ended.out)
    assert (report["size"], report.get("alignment")) == (2, None)
    assert f"note: {file}: skipped 1 line(s)" in ended.err
    assert "note: 1 source(s)" in ended.err
    assert "chrF" in qkv("evaluate", run, "--data", file).out
    file.write_text("5 March 2026\t2026-03-05\n" + "5" * 600 + "\t2026-03-05\n", encoding="utf-8")
    ended = qkv("evaluate", run, "--data", file, "--json")
    assert objects(ended.out)[0]["size"] == 1
    assert "note: skipped 1 pair(s)" in ended.err
    file.write_text("5 March 2026\t2026-03-05\n\n", encoding="utf-8")
    assert "line 2" in qkv("evaluate", run, "--data", file, "--strict").error
    assert "--split" in qkv("evaluate", run, "--data", file, "--split", "test").error
    assert "no dev split" in qkv("evaluate", run, "--split", "dev").error


def test_evaluate_keeps_temporary_files_of_a_running_training(qkv: Command, run: Path) -> None:
    scratch = run / ".writing-1-step-00009999"
    scratch.mkdir()
    try:
        assert qkv("evaluate", run, "--limit", 1).code == 0
        assert scratch.exists()
    finally:
        scratch.rmdir()


def test_view_writes_a_page_and_a_png_and_prints_a_heat_map(qkv: Command, run: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "new" / "page.html", tmp_path / "picture.png"
    ended = qkv("view", run, *TEXTS, "--page", page, "--png", picture)
    assert ended.code == 0
    assert ended.err.startswith("5 March 2026  ->  ")
    assert ended.out.splitlines()[-2:] == [str(page), str(picture)]
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert picture.read_bytes().startswith(b"\x89PNG")
    ended = qkv("view", run, "--count", 2, "--page", page, "--json")
    assert objects(ended.out) == [{"page": str(page)}]


def test_view_prints_at_most_a_screen_unless_asked(qkv: Command, run: Path, tmp_path: Path) -> None:
    text, page = "Thursday, 5 March 2026 " * 6, tmp_path / "page.html"
    capped = qkv("view", run, text, "--page", page)
    assert len(capped.out.splitlines()) <= 24
    assert "--full" in capped.out
    full = qkv("view", run, text, "--page", page, "--full")
    assert full.code == 0
    assert "--full" not in full.out
    assert len(full.out.splitlines()) > len(capped.out.splitlines())


def test_view_opens_its_page_and_names_the_model_in_it(
    qkv: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page = tmp_path / "page.html"
    assert qkv("view", run, TEXTS[0], "--num-beams", 3, "--page", page, "--open").code == 0
    assert opened == [page.as_uri()]
    text = page.read_text(encoding="utf-8")
    assert f"<title>Attention: {html.escape(f'{run.parent.name}/{run.name}, {TEXTS[0]}')}</title>" in text
    assert '"beams":{"hypotheses":' in text


def test_view_fails_before_writing_anything(qkv: Command, run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for arguments, words in (
        (["--head", 7], "layer 'decoder' has no head 7"),
        (["--layer", "encoder"], "no attention recorded for layer 'encoder'"),
    ):
        assert qkv("view", run, TEXTS[0], "--page", page, *arguments).error.startswith(words)
        assert not page.exists()
    assert qkv("view", run, " ", "--page", page).error.startswith("input 1 ")
    ended = qkv("view", run, "5 ☃", "--page", page)
    assert ended.err.startswith("note: input 1: ")


def test_an_unwritable_output_path_is_named(qkv: Command, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    below = file / "below"
    words = f"{below}: cannot be written: a parent is a file, not a folder"
    assert qkv("view", run, TEXTS[0], "--page", below).error == words
    assert qkv("view", run, TEXTS[0], "--page", tmp_path).error.startswith(f"{tmp_path}: is a folder")
    ended = qkv("view", run, TEXTS[0], "--page", tmp_path / "page.html", "--png", below)
    assert ended.err == f"error: {words}\n"
    ended = qkv("translate", run, TEXTS[0], "--page", below)
    assert (ended.code, ended.err) == (2, f"error: {words}\n")
    ended = qkv("train", "dates-gru", "--set", "data.size=20", *TINY, "--output", below)
    assert "cannot be written" in ended.error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NotFinite("the loss is\nnot finite"), 1, "error: the loss is not finite\n"),
        (OSError(28, "No space left on device", "a.html"), 2, "error: a.html: No space left on device\n"),
        (OSError("odd"), 2, "error: odd\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(qkv: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(dates.Dates, "load", fail)
    ended = qkv("data", "show", "dates")
    assert (ended.code, ended.out, ended.err) == (code, "", words)


DATASETS = [
    "dates", "pairs", "multi30k", "tatoeba", "cmudict", "tinyshakespeare", "text", "labelled", "sentence_polarity",
    "imdb", "movie_reviews", "tagged", "ud_english_ewt", "wnut17", "questions", "copy", "repeat_copy", "recall",
    "fashion_mnist", "shapes", "emoji", "flickr8k", "coco", "omniglot", "audiomnist8k", "fsdd", "speech", "bandits",
    "nottingham", "python_stdlib", "trees", "gum", "ptb_sample", "chitchat", "images", "captions",
    "dialogues", "stories", "babi", "squadshifts", "samsum", "multi30k_multilingual",
]  # fmt: skip


def test_data_list_names_every_dataset(qkv: Command) -> None:
    _, *names = [line.split()[0] for line in qkv("data", "list").out.splitlines() if line[0] != " "]
    assert sorted(names) == sorted(DATASETS)
    assert [entry["name"] for entry in objects(qkv("data", "list", "--json").out)] == names


def test_data_show_prints_pairs_of_a_dataset_or_of_files(qkv: Command, tmp_path: Path) -> None:
    ended = qkv("data", "show", "dates", "--split", "test", "--count", 3)
    expected = generate(3, split="test")
    assert ended.out == "".join(f"{pair.source}\t{pair.target}\n" for pair in expected)
    assert ended.err == "dates: 2,000 pairs\n"
    shown = objects(qkv("data", "show", "dates", "--count", 1, "--json").out)
    assert list(shown[0]) == ["source", "target"]
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text("a\n\nc\n")
    target.write_text("1\n2\n3\n")
    ended = qkv("data", "show", source, target)
    assert ended.out == "a\t1\nc\t3\n"
    assert "note: " in ended.err
    assert "--kind pairs" in qkv("data", "show", "pairs").error
    assert "target" in qkv("data", "show", "dates", tmp_path / "t.txt").error
    assert "did you mean dates?" in qkv("data", "show", "dtaes").error
    assert "did you mean test?" in qkv("data", "show", "dates", "--split", "tset").error
    for split in ("test", "nonsense"):
        assert "no splits" in qkv("data", "show", source, target, "--split", split).error


def test_data_show_prints_a_split_of_a_folder(qkv: Command, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text(f"5 may\t{split}\n6 may\t{split}\n")
    for options, split in (((), "train"), (("--split", "train"), "train"), (("--split", "valid"), "dev")):
        assert qkv("data", "show", tmp_path, *options).out == f"5 may\t{split}\n6 may\t{split}\n"
    assert "has no split test" in qkv("data", "show", tmp_path, "--split", "test").error


@pytest.mark.parametrize("command", ["translate dates x --page", "view dates x --png", "claims figure --png"])
def test_pages_and_figures_must_have_the_suffix_of_their_format(command: str, qkv: Command, tmp_path: Path) -> None:
    suffix = ".html" if command.endswith("page") else ".png"
    assert suffix in qkv(*command.split(), tmp_path / "x.txt").error
    assert not (tmp_path / "x.txt").exists()


def test_demo_trains_evaluates_and_is_reused(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'task = "translate"\ndata = { name = "dates", size = 60 }\n'
        'model = { name = "rnn_seq2seq", hidden_dim = 8, embedding_dim = 4 }\n'
        'train = { epochs = 1, valid_size = 5, best_by = "exact" }\n'
    )
    monkeypatch.setattr(demo, "RECIPE", str(recipe))
    monkeypatch.setattr(dates, "HELD_OUT", 50)
    out = tmp_path / "demo"
    ended = qkv("demo", "--output", out, "--device", "cpu")
    assert ended.code == 0
    assert "exact match" in ended.out
    assert all(text in ended.out for text in demo.EXAMPLES)
    assert (out / "attention.html").exists()
    assert (out / "attention.png").exists()
    ended = qkv("demo", "--output", out, "--json", "--device", "cpu")
    (report,) = objects(ended.out)
    assert report["size"] == 50
    assert f"{out} already contains a demo" in ended.err
    ended = qkv("demo", "--output", run)
    assert (ended.code, "--output" in ended.err.splitlines()[-1]) == (2, True)

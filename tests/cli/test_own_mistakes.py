"""Common mistakes with user files."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from .command import TINY

PAIRS = "".join(f"{number} mai\t{number} may\n" for number in range(40))
LABELLED = "".join(f"text number {number}\t{'good' if number % 2 else 'bad'}\n" for number in range(40))
CONLL = "".join(f"w{number}\tNOUN\nruns\tVERB\n.\tPUNCT\n\n" for number in range(40))
TEXT = "5 March 2026"


def test_training_notes_a_header_row_and_few_pairs(qkv, tmp_path):
    (tmp_path / "mine.csv").write_text("de,en\n" + PAIRS.replace("\t", ","))
    done = qkv("train", "pairs-gru", "--data", tmp_path / "mine.csv", "--output", tmp_path / "run", *TINY)
    assert done.code == 0, done.err
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert "header" in notes[0]
    assert "2 of 40 pairs are held out" in notes[1]
    few, steps = (line for line in done.err.splitlines() if line.startswith("warning: "))
    assert "38 training pairs" in few
    assert "train.epochs=" in steps
    strict = ("--strict", "--output", tmp_path / "strict", *TINY)
    assert "header" in qkv("train", "pairs-gru", "--data", tmp_path / "mine.csv", *strict).error


def test_media_and_texts_given_to_the_wrong_recipe_name_the_right_one(qkv, tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "photos" / "cat" / "1.png")
    (tmp_path / "texts.tsv").write_text(LABELLED)
    assert "qkv train images-vit" in qkv("train", "polarity-bert", "--data", tmp_path / "photos").error
    assert "qkv train polarity-bert" in qkv("train", "images-vit", "--data", tmp_path / "texts.tsv").error
    assert "qkv train polarity-bert" in qkv("train", "ewt-lstm", "--data", tmp_path / "texts.tsv").error


def test_a_table_with_other_columns_names_them_and_the_option(qkv, tmp_path):
    (tmp_path / "tickets.csv").write_text("id,Message body,Verdict\n1,it broke,bad\n")
    error = qkv("train", "polarity-bert", "--data", tmp_path / "tickets.csv").error
    assert "'Message body'" in error
    assert "--column text=NAME --column label=NAME" in error


def test_a_folder_of_runs_names_them(qkv, run):
    assert str(run) in qkv("translate", run.parent, TEXT).error


def test_no_warning_about_few_pairs_of_a_built_in_dataset_or_when_fine_tuning(qkv, run, tmp_path):
    train = ("--set", "train.epochs=1", *TINY, "--output")
    done = qkv("train", "dates-gru", *train, tmp_path / "few", "--set", "data.size=100")
    assert (done.code, "few examples" in done.err) == (0, False), done.err
    (tmp_path / "mine.tsv").write_text(PAIRS)
    tune = ("train", "pairs-gru", "--data", tmp_path / "mine.tsv", *train, tmp_path / "tuned")
    done = qkv(*tune, "--set", f"init={run}")
    assert (done.code, "few examples" in done.err) == (0, False), done.err


def test_training_and_data_check_print_the_same_warnings(qkv, tmp_path):
    files = {"train": f"feedback\tverdict\n{LABELLED}w0 schÃ¶n\tbad\n", "valid": LABELLED[:100]}
    for name, text in files.items():
        (tmp_path / f"{name}.tsv").write_text("".join(f"{line}\n" for line in text.splitlines() if "\t" in line))
    arguments = ("--valid", tmp_path / "valid.tsv", "--set", "model.hidden_dim=4", "--set", "model.embedding_dim=4",
                 "--set", "train.epochs=1")  # fmt: skip
    trained = qkv("train", "polarity-lstm-mean", "--data", tmp_path / "train.tsv", *arguments, "--output",
                  tmp_path / "run")  # fmt: skip
    assert trained.code == 0, trained.err
    warnings = [line for line in trained.err.splitlines() if line.startswith("warning: ")]
    for words in ("are also in train", "encoding", "possible header", "fewer than 5", "few examples", "few steps"):
        assert any(words in line for line in warnings), words
    checked = qkv("data", "check", tmp_path / "train.tsv", "--recipe", "polarity-lstm-mean", *arguments)
    assert [line for line in checked.out.splitlines() if line.startswith("warning: ")] == warnings
    resumed = qkv("train", "--resume", tmp_path / "run", "--set", "train.epochs=2")
    assert (resumed.code, "warning: " in resumed.err) == (0, False)


def test_the_lines_of_a_text_may_repeat(qkv, tmp_path):
    (tmp_path / "a.txt").write_text("a line of text\n\n" * 400)
    small = ("--set", "train.batch_size=32", "--set", "task.length=16", "--set", "model.max_length=16", "--json")
    checked = qkv("data", "check", tmp_path / "a.txt", "--recipe", "shakespeare-gpt", *small)
    assert checked.code == 0, checked.err
    assert not any("duplicates" in warning for warning in json.loads(checked.out)["warnings"])


@pytest.mark.parametrize(
    ("recipe", "content", "word"),
    [
        ("polarity-bert", PAIRS, "columns"),
        ("polarity-bert", "".join("\t".join(reversed(line.split("\t"))) + "\n" for line in LABELLED.splitlines()) * 2,
         "swapped"),
        ("ewt-bert-scratch", LABELLED, "CoNLL"),
        ("pairs-gru", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff", "PNG"),
        ("ewt-bert-scratch", "a" * 2**21, "line 1"),
        ("polarity-bert", f"a\tb\n{'a' * 2**20}\n", "line 2"),
    ],
)  # fmt: skip
def test_training_on_files_in_another_format_is_an_error(qkv, tmp_path, recipe, content, word):
    (tmp_path / "mine.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    error = qkv("train", recipe, "--data", tmp_path / "mine.tsv", "--output", tmp_path / "run").error
    assert word in error
    assert len(error) < 500
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("recipe", "scratch"), [("images-vit-finetune", "images-vit"), ("questions-bert", "init=")])
def test_a_recipe_that_fine_tunes_requires_a_pretrained_model(qkv, tmp_path, recipe, scratch):
    for more in ((), ("--dry-run",)):  # before the data is read: there is none
        done = qkv("train", recipe, "--data", tmp_path / "none", "--output", tmp_path / "run", *more)
        assert (done.code, done.error.count("--set init=FOLDER"), scratch in done.error) == (2, 1, True)
    assert not (tmp_path / "run").exists()


def test_training_on_special_files_is_an_error(qkv, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop.tsv").symlink_to("loop.tsv")
    for path in (tmp_path / "fifo", tmp_path / "loop.tsv", "/dev/zero"):
        assert str(path) in qkv("train", "pairs-gru", "--data", path, "--output", tmp_path / "run").error


def test_a_recipe_without_data_is_an_error(qkv, tmp_path):
    (tmp_path / "mine.toml").write_text('task = "translate"\n')
    assert "data.name" in qkv("train", tmp_path / "mine.toml", "--output", tmp_path / "run").error
    (tmp_path / "mine.toml").write_text('task = "translat"\n')
    (tmp_path / "mine.tsv").write_text(PAIRS)
    assert "task" in qkv("train", tmp_path / "mine.toml", "--data", tmp_path / "mine.tsv").error


def test_data_show_detects_the_format(qkv, tmp_path):
    for name, content in (("a.conll", CONLL), ("a.tsv", PAIRS), ("a.txt", "a line\nanother\n")):
        (tmp_path / name).write_text(content)
    shown = qkv("data", "show", tmp_path / "a.conll", "--count", 1)
    assert (shown.code, shown.out) == (0, "w0 runs .\tNOUN VERB PUNCT\n")
    assert "40 sentences" in shown.err
    assert json.loads(qkv("data", "show", tmp_path / "a.tsv", "--count", 1, "--json").out)["source"] == "0 mai"
    assert qkv("data", "show", tmp_path / "a.txt", "--count", 1).out == "a line\n"
    assert "column" in qkv("data", "show", tmp_path / "a.txt", "--kind", "pairs").error
    assert "CoNLL" in qkv("data", "show", tmp_path / "a.conll", "--kind", "pairs").err
    assert "pairs" in qkv("data", "show", tmp_path / "a.tsv", "--kind", "pair").error


def test_unknown_characters_in_many_lines_give_one_note(qkv, run, tmp_path):
    (tmp_path / "a.txt").write_text(f"{TEXT}\n" + f"{TEXT}\t☃\n" * 30)
    done = qkv("translate", run, "--input", tmp_path / "a.txt")
    assert done.code == 0
    assert done.err.count("note: ") == done.err.count("\n") == 1
    assert "30 inputs" in done.err
    assert "U+2603" in done.err
    assert len(done.err) < 500


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0"])
def test_standard_input_can_be_named(qkv, run, name):
    expected = qkv("translate", run, TEXT)
    assert expected.code == 0
    assert qkv("translate", run, "--input", name, stdin=f"{TEXT}\n".encode()).out == expected.out


def test_a_named_pipe_or_device_as_input_is_an_error(qkv, run, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/tty"):
        assert "standard input" in qkv("translate", run, "--input", path).error
    writing = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (writing, 987654321):
            assert f"/dev/fd/{number}" in qkv("translate", run, "--input", f"/dev/fd/{number}").error
    finally:
        os.close(writing)


def test_process_substitution_is_valid_input_but_not_training_data(run, tmp_path):
    qkv = f"{sys.executable} -m qkv"
    script = f"""
        {qkv} translate {run} --input <(printf '{TEXT}\\n') || exit 1
        {qkv} train pairs-gru --data <(printf 'a\\tb\\n') --output {tmp_path}/run
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 2, done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stderr.count("\n") == 1
    assert "pipe, not a regular file" in done.stderr


def test_an_open_pipe_is_read_to_its_end(qkv, run):
    reading, writing = os.pipe()
    os.write(writing, f"{TEXT}\n".encode())
    os.close(writing)
    try:
        assert qkv("translate", run, "--input", f"/proc/self/fd/{reading}").out == qkv("translate", run, TEXT).out
    finally:
        os.close(reading)

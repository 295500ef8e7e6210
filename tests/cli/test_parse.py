"""`qkv parse`: brackets, JSON, drawings, the attention page, and errors."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.datasets.examples.trees import Tree
from qkv.hub.model_folder import save_model
from tests.pipelines.parsers import transformer_parser

from .command import Ended

Command = Callable[..., Ended]
TEXTS = ["The cat sleeps.", "She reads (books)"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    parser = transformer_parser()
    save_model(parser, parser.tokenizer, tmp_path / "model")
    return tmp_path / "model"


def test_each_sentence_gives_a_tree_or_a_json_object(qkv: Command, model: Path, tmp_path: Path) -> None:
    ended = qkv("parse", model, *TEXTS)
    assert (ended.code, ended.err) == (0, "")
    trees = [Tree.parse(line, "output") for line in ended.out.splitlines()]
    assert [tree.words for tree in trees] == [
        ("The", "cat", "sleeps", "."),
        ("She", "reads", "-LRB-", "books", "-RRB-"),
    ]
    objects = [json.loads(line) for line in qkv("parse", model, *TEXTS, "--json").out.splitlines()]
    for number, (found, tree) in enumerate(zip(objects, trees, strict=True), start=1):
        assert (found["input"], found["text"], found["tree"]) == (number, TEXTS[number - 1], str(tree))
        assert found["constituents"] == [list(constituent) for constituent in tree.constituents]
        assert (found["words"], found["tags"]) == (list(tree.words), list(tree.tags))
        assert found["symbols"] == tree.symbols()
        assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in found["attention"])
        assert {len(row) for row in found["attention"]} == {len(tree.words)}
    (tmp_path / "in.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    assert qkv("parse", model, "--input", tmp_path / "in.txt").out == ended.out


def test_translate_refuses_a_parser(qkv: Command, model: Path) -> None:
    assert "qkv parse" in qkv("translate", model, TEXTS[0]).error


def test_words_separated_by_spaces_are_kept(qkv: Command, model: Path) -> None:
    assert Tree.parse(qkv("parse", model, "cat's-eye .", "--tokenized").out, "output").words == ("cat's-eye", ".")


def test_trees_are_drawn_in_the_terminal_and_as_svg(qkv: Command, model: Path, tmp_path: Path) -> None:
    drawn = qkv("parse", model, TEXTS[0], "--draw").out
    assert drawn.startswith("TOP\n└── ")
    assert "sleeps/" in drawn
    ended = qkv("parse", model, *TEXTS, "--output", tmp_path / "trees.svg")
    assert (ended.code, ended.out) == (0, "")
    assert ET.parse(tmp_path / "trees.svg").getroot().tag.endswith("svg")
    assert qkv("parse", model, *TEXTS, "--output", tmp_path / "trees.txt").code == 0
    assert (tmp_path / "trees.txt").read_text().count("(TOP") == 2


def test_attention_page_and_view(qkv: Command, model: Path, tmp_path: Path) -> None:
    assert qkv("parse", model, TEXTS[0], "--page", tmp_path / "page.html").code == 0
    assert "sleeps" in (tmp_path / "page.html").read_text()
    ended = qkv("view", model, TEXTS[0], "--page", tmp_path / "view.html")
    assert (ended.code, "(TOP " in ended.err) == (0, True)


def test_bad_input_is_one_line_with_exit_code_2(qkv: Command, model: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ([""], "empty"),
        (["a " * 80], "at most 64"),
        (["x" * 2000 + " b"], "characters"),
        (["a", "--num-beams", 0], "--num-beams"),
    ):
        ended = qkv("parse", model, *arguments)
        assert (ended.code, ended.out) == (2, "")
        assert words in ended.err
        assert ended.err.count("\n") == 1
    (tmp_path / "lines.txt").write_text("The cat\n\nsleeps\n")
    ended = qkv("parse", model, "--input", tmp_path / "lines.txt")
    assert (ended.code, ended.out.splitlines()[1], ended.out.count("\n")) == (0, "", 3)
    assert qkv("parse", model, "--input", tmp_path / "lines.txt", "--strict").code == 2


def test_files_of_trees_are_evaluated_and_broken_ones_name_their_line(qkv: Command, tmp_path: Path) -> None:
    trees = [f"(TOP (S (NP (NN w{number})) (VP (VB go))))" for number in range(8)]
    (tmp_path / "trees.txt").write_text("\n".join(trees))
    (tmp_path / "broken.txt").write_text(f"{trees[0]}\n(TOP (S (NN a))\n")
    small = [
        "data.name=trees", f"data.train=['{tmp_path / 'trees.txt'}']", "model.dim=8", "model.heads=2",
        "model.ffn_dim=8",
        "model.encoder_layers=1", "model.decoder_layers=1", "train.epochs=1", "train.batch_size=64",
        "data.tokenizer.vocab_size=40",
    ]  # fmt: skip
    settings = [part for setting in small for part in ("--set", setting)]
    run = tmp_path / "run"
    assert qkv("train", "gum-parse-transformer", *settings, "--output", run, "--device", "cpu").code == 0
    ended = qkv("evaluate", run, "--data", tmp_path / "trees.txt", "--json")
    scores = json.loads(ended.out)
    assert {"f1", "precision", "recall", "exact", "well_formed", "tags"} <= scores.keys()
    assert scores["well_formed"] == 1.0
    ended = qkv("evaluate", run, "--data", tmp_path / "broken.txt")
    assert (ended.code, "broken.txt: line 2" in ended.err) == (2, True)


def test_the_python_code_of_the_how_to_page_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    model.rename(tmp_path / "runs" / "gum-parse-gru-0")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "parse.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(code, page.name, "exec"), {})
    assert capsys.readouterr().out.startswith("(TOP ")

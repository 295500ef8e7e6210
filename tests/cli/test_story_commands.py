"""`qkv answer` and `qkv view` of a memory network."""

import json
import re
import shutil
from pathlib import Path

import pytest

from qkv.hub import save_model
from qkv.pipelines.story_answerer import StoryAnswerer
from tests.tasks.stories import memory_network

STORY = "Mary went to the garden. John went to the hall. Mary went to the office."
QUESTION = "Where is Mary?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stories") / "memory"
    path.mkdir()
    model = memory_network()
    save_model(model, model.tokenizer, path)
    return path


def test_answers_are_printed_with_their_probability(qkv, folder):
    done = qkv("answer", folder, "--question", QUESTION, "--text", STORY, "--top-k", 2)
    ranked = [*StoryAnswerer(folder, device="cpu")(QUESTION, STORY).probabilities.items()][:2]
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [f"1\t{probability:.4f}\t{answer}" for answer, probability in ranked]


def test_json_has_the_weights_of_the_sentences_in_each_hop(qkv, folder, tmp_path):
    lines = [{"question": QUESTION, "text": STORY}, {"question": "Where is Zoe?", "text": "Zoe went to the hall."}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = qkv("answer", folder, "--input", tmp_path / "a.jsonl", "--json")
    first, second = map(json.loads, done.out.splitlines())
    answer = StoryAnswerer(folder, device="cpu")(QUESTION, STORY)
    assert (first["question"], first["answer"], first["sentences"]) == (QUESTION, answer.text, [*answer.sentences])
    assert [len(hop) for hop in first["attention"]] == [3, 3, 3]
    assert sum(first["attention"][0]) == pytest.approx(1.0, abs=1e-5)
    assert second["attention"] == [[1.0]] * 3
    assert done.err.startswith("note: input 2: out-of-vocabulary")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--question", QUESTION, "--text", " "], "--text is empty"),
        (["--question", QUESTION, "--text", STORY, "--stride", "3"], "--stride"),
        (["--question", QUESTION, "--text", STORY, "--max-answer-tokens", "3"], "--max-answer-tokens"),
        (["--question", QUESTION, "--text", STORY, "--batch-size", "3"], "--batch-size"),
        (["--question", QUESTION, "--text", STORY, "--top-k", "0"], "--top-k"),
        (["--question", QUESTION], "--text"),
    ],
)
def test_invalid_options_are_errors(qkv, folder, arguments, words):
    assert words in qkv("answer", folder, *arguments).error


def test_a_view_shows_the_sentences_with_the_weights_of_the_hops(qkv, folder, tmp_path):
    page, png = tmp_path / "a.html", tmp_path / "a.png"
    done = qkv("view", folder, f"{STORY} {QUESTION}", "--page", page, "--png", png)
    answer = StoryAnswerer(folder, device="cpu")(QUESTION, STORY)
    assert (done.code, done.err) == (0, f"{QUESTION}  ->  {answer.text}\n")
    lines = done.out.splitlines()
    assert lines[0].split() == ["hop", "1", "hop", "2", "hop", "3"]
    for column, sentence in enumerate(answer.sentences):
        weights = [f"{weight:.1%}" for weight in answer.attention[0].average[:, column]]
        assert all(weight in lines[1 + column] for weight in weights)
        assert lines[1 + column].endswith(sentence)
    assert lines[4].strip() == QUESTION
    assert lines[-2:] == [str(page), str(png)]
    assert page.stat().st_size > 1000
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", [STORY, QUESTION, "?", f"{QUESTION} {STORY}"])
def test_a_view_needs_a_story_that_ends_with_a_question(qkv, folder, text):
    assert "ends with a question" in qkv("view", folder, text).error


def test_a_view_of_a_folder_without_a_dataset_needs_an_input(qkv, folder):
    assert "not a training run" in qkv("view", folder).error


def test_a_view_rejects_options_of_other_models(qkv, folder):
    assert "--num-beams" in qkv("view", folder, f"{STORY} {QUESTION}", "--num-beams", "2").error


def test_the_python_code_of_the_how_to_page_runs(folder, tmp_path, monkeypatch, capsys):
    shutil.copytree(folder, tmp_path / "runs" / "babi-memory-0")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "answer-about-stories.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(code, page.name, "exec"), {})
    answer, *hops = capsys.readouterr().out.splitlines()
    assert answer in memory_network().labels
    assert [line[:5] for line in hops] == ["hop 1", "hop 2", "hop 3"]

"""`qkv answer`: extractive question answering from the command line."""

import json
from pathlib import Path

import pytest

from qkv.pipelines.question_answerer import QuestionAnswerer
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

ASKED = [
    {"question": "Who sat?", "text": "The cat\tsat on\nthe mat."},
    {"question": "Where lives Ada?", "text": "Ada lives in Paris. " * 6},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answering")
    return saved(tiny_bert("span", max_length=16), tiny_tokenizer(path), path / "span")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    path = folder.parent / "asked.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ASKED))
    return path


def test_answers_are_spans_of_the_text_with_their_offsets(qkv, folder, file):
    done = qkv("answer", folder, "--input", file, "--json", "--top-k", 3, "--max-answer-tokens", 4)
    assert (done.code, done.err) == (0, "")
    found = [json.loads(line) for line in done.out.splitlines()]
    answerer = QuestionAnswerer(folder, device="cpu")
    questions, contexts = ([one[key] for one in ASKED] for key in ("question", "text"))
    wanted = answerer(questions, contexts, top_k=3, max_answer_tokens=4)
    for number, (one, answered, asked) in enumerate(zip(found, wanted, ASKED, strict=True), start=1):
        assert (one["input"], one["question"], one["text"]) == (number, asked["question"], asked["text"])
        assert one["no_answer"] == pytest.approx(answered.no_answer, abs=1e-6)
        assert len(one["candidates"]) == 3
        for candidate in one["candidates"]:
            assert asked["text"][candidate["begin"] : candidate["end"]] == candidate["text"]
        best = one["candidates"][0]
        assert one["answer"] == (best if best["probability"] >= one["no_answer"] else None)


def test_each_answer_is_a_line_and_a_single_question_can_be_an_option(qkv, folder, file):
    answerer = QuestionAnswerer(folder, device="cpu")
    for asked in ASKED:
        found = answerer(asked["question"], asked["text"], top_k=2)
        rows = [
            f"1\t{one.probability:.4f}\t{one.start}\t{one.end}\t{' '.join(one.text.split())}"
            for one in found.candidates
        ]
        if found.span is None:
            rows.insert(0, f"1\t{found.no_answer:.4f}\t\t\t")
        done = qkv("answer", folder, "--question", asked["question"], "--text", asked["text"], "--top-k", 2)
        assert done.out.splitlines() == rows[:2]
    done = qkv("answer", folder, "--input", file)
    assert [line.split("\t")[0] for line in done.out.splitlines()] == ["1", "2"]


def test_a_truncated_question_is_noted(qkv, folder):
    done = qkv("answer", folder, "--question", "cat " * 9, "--text", "The mat.")
    assert done.err.startswith("note: 1 question(s)")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "standard input"),
        (["--question", "a"], "--text"),
        (["--question", " ", "--text", "a"], "--question is empty"),
        (["--question", "a", "--text", "a", "--input", "x"], "--input"),
        (["--input", "none.jsonl"], "none.jsonl: no such file"),
        (["--question", "a", "--text", "a", "--max-answer-tokens", "0"], "--max-answer-tokens"),
        (["--question", "a", "--text", "a", "--stride", "0"], "--stride"),
    ],
)
def test_invalid_arguments_are_errors(qkv, folder, arguments, words):
    assert words in qkv("answer", folder, *arguments).error


@pytest.mark.parametrize("line", ['{"question": "a"}', '{"question": "a", "text": " "}', "[1]", "{", "[" * 99_999])
def test_an_invalid_line_is_named(qkv, folder, tmp_path, line):
    (tmp_path / "a.jsonl").write_text(json.dumps(ASKED[0]) + f"\n{line}\n{json.dumps(ASKED[1])}\n")
    assert f"{tmp_path / 'a.jsonl'}: line 2: " in qkv("answer", folder, "--input", tmp_path / "a.jsonl").error


def test_blank_lines_between_questions_are_skipped(qkv, folder, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ASKED[0]) + f"\n\n  \n{json.dumps(ASKED[1])}\n")
    done = qkv("answer", folder, "--input", tmp_path / "a.jsonl")
    assert (done.code, len(done.out.splitlines())) == (0, 2)


def test_a_model_is_trained_evaluated_and_used(qkv, tmp_path):
    text = "The cat sat on the mat. The dog sat in the film."
    answers = {"Where sat the cat?": "the mat", "Where sat the dog?": "the film", "Who?": None}
    qas = [
        {"question": question, "answers": [], "is_impossible": True} if answer is None
        else {"question": question, "answers": [{"text": answer, "answer_start": text.index(answer)}]}
        for question, answer in answers.items()
    ]  # fmt: skip
    data = tmp_path / "train.json"
    data.write_text(json.dumps({"data": [{"paragraphs": [{"context": text, "qas": qas}]}]}))
    recipe = tmp_path / "questions.toml"
    recipe.write_text(f"""
        task = "answer"
        data = {{ name = "questions", train = ["{data}"], valid = ["{data}"], tokenizer = "word" }}
        model = {{ name = "bert", dim = 16, heads = 2, layers = 1, max_length = 24 }}
        train = {{ epochs = 2, batch_size = 64, best_by = "f1" }}
    """)
    run = tmp_path / "run"
    done = qkv("train", recipe, "--output", run, "--device", "cpu")
    assert done.code == 0, done.err
    assert "3 questions, 3 windows" in done.err
    done = qkv("evaluate", run, "--split", "valid", "--json", "--device", "cpu")
    assert {"loss", "exact", "f1"} <= json.loads(done.out).keys()
    done = qkv("answer", run, "--question", "Who?", "--text", text, "--json", "--device", "cpu")
    assert json.loads(done.out)["candidates"][0]["text"] in text
    bad = qkv("train", recipe, "--set", "model.head=tagger", "--output", tmp_path / "other")
    assert "model.head" in bad.error
    data.write_text(data.read_text().replace('"answer_start": ', '"answer_start": 1'))
    assert "the mat" in qkv("train", recipe, "--output", tmp_path / "other").error


def test_a_model_for_another_task_is_an_error(qkv, folder, tmp_path):
    other = saved(tiny_bert("tagger"), tiny_tokenizer(tmp_path), tmp_path / "tagger")
    error = qkv("answer", other, "--question", "a", "--text", "b").error
    assert "tagger" in error

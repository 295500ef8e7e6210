"""The file format of bAbI, the dataset babi and the dataset squadshifts."""

import os

import pytest

from qkv.datasets.dataset import StoryDataset
from qkv.datasets.examples.stories import StoryQuestion, parse_stories
from qkv.errors import InputError
from tests.datasets.build import dataset, load

real = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")

LINES = [
    "1 Mary got the milk there.",
    "2 What is Mary carrying? \tmilk\t1",
    "3 Mary got the apple.",
    "4 What is Mary carrying? \tmilk,apple\t1 3",
    "1 John left.",
    "2 Where is John?\tgarden\t1",
]


def test_questions_refer_to_the_preceding_sentences_of_their_story():
    first, second = parse_stories(LINES, "a.txt", task=8)
    assert first[0] == StoryQuestion(("Mary got the milk there.",), "What is Mary carrying?", "milk", 8)
    assert first[1].sentences == ("Mary got the milk there.", "Mary got the apple.")
    assert first[1].answer == "milk,apple"
    assert second == [StoryQuestion(("John left.",), "Where is John?", "garden", 8)]
    assert second[0].text == "John left. Where is John?"


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["2 Mary left."], "line 1"),
        (["1 Mary left.", "3 John left."], "line 2"),
        (["1 Mary left.", ""], "line 2"),
        (["1 Mary left.", "2"], "line 2"),
        (["Mary left."], "line 1"),
        (["1 Mary left.", "2 Where?\t"], "no questions"),
        (["1 Mary left.", "2 Where?\t\t1"], "line 2"),
        (["1 Mary left.", "2 \tgarden"], "line 2"),
        (["1 Mary left."], "no questions"),
        ([], "no questions"),
    ],
)
def test_broken_files_are_errors_with_the_line(lines, where):
    with pytest.raises(InputError, match=rf"a\.txt: .*{where}|a\.txt: {where}"):
        parse_stories(lines, "a.txt")


def test_texts_of_a_tokenizer_are_distinct_and_the_fingerprint_depends_on_answers():
    questions = [question for story in parse_stories(LINES, "a.txt") for question in story]
    data = StoryDataset({"train": questions, "valid": questions[:1]})
    texts = [*data.training_texts()]
    assert len(texts) == len(set(texts)) == 5
    changed = StoryDataset({"train": [*questions[:2], StoryQuestion(("John left.",), "Where is John?", "office")]})
    assert data.fingerprint != changed.fingerprint
    assert next(data.preview("valid"))["answer"] == "milk"


@pytest.mark.parametrize("tasks", [[0], [21], [3, 3], [], ["a"]])
def test_invalid_task_numbers_are_rejected(tasks):
    with pytest.raises(InputError, match="tasks"):
        dataset("babi", tasks=tasks)


@real
def test_babi_has_the_published_sizes_and_no_story_in_two_splits():
    data = load("babi", tasks=[4, 19])
    assert [len(data.splits[split]) for split in ("train", "valid", "test")] == [17_984, 2_016, 2_000]
    assert {question.task for question in data.splits["train"][:2000]} == {4, 19}  # a prefix has all tasks
    assert {q.text for q in data.splits["train"]}.isdisjoint(q.text for q in data.splits["valid"])
    (first, *_) = data.splits["test"]
    assert (first.sentences[-1], first.question, first.answer) == (
        "The bedroom is west of the bathroom.",
        "What is the bathroom east of?",
        "bedroom",
    )


@real
@pytest.mark.corpus
def test_squadshifts_has_the_published_sizes():
    data = load("squadshifts")
    sizes = {split: len(questions) for split, questions in data.splits.items()}
    assert sizes == {"train": 22_431, "valid": 2_243, "test": 2_952, "test_xquad_en": 1_190}
    assert all(question.answers for question in data.splits["test"])

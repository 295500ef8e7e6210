"""Answering: the windows of long texts, what is right in each, the loss, and a model that learns its questions."""

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.data.questions import Passage, Question
from qkv.data.registry import LoadedData
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.models.bert import Bert, Config
from qkv.tasks.answering import AnsweringTask
from qkv.tasks.pieces import IGNORE, Splitter
from qkv.tasks.windows import CLS, windows_of
from qkv.training.recipe import TrainConfig
from tests.tasks.tiny_bert import tiny_tokenizer

PLACES = ("in Rome", "on the hill", "at home", "by the old lake")
NAMES = ("Ada", "Bo", "Cy", "Di")
TEXT = " ".join(f"{name} lives {place}." for name, place in zip(NAMES, PLACES, strict=True))


def asked(question: str, answer: str, text: str = TEXT) -> Question:
    begin = text.index(answer)
    return Question(question, text, (Passage(begin, begin + len(answer)),))


QUESTIONS = [
    *(asked(f"Where is {name}?", place) for name, place in zip(NAMES, PLACES, strict=True)),
    *(asked(f"Who lives {place}?", name) for name, place in zip(NAMES[:3], PLACES[:3], strict=True)),
    Question("Where is Eve?", TEXT),
]
VOCABULARY = Vocabulary.train([TEXT, *(one.question for one in QUESTIONS)], "word")


def prepared(longest: int, questions: list[Question] = QUESTIONS, **train: Any) -> AnsweringTask:
    data = LoadedData({}, questions={"train": questions, "valid": questions})
    settings = TrainConfig(**{"batch_tokens": 200, **train})
    return AnsweringTask.prepare(data, VOCABULARY, SimpleNamespace(max_length=longest), settings, 0)


def tiny(longest: int) -> Bert:
    torch.manual_seed(0)
    config = Config(
        len(VOCABULARY), "span", dim=48, heads=3, layers=2, max_length=longest, dropout=0.0, attention_dropout=0.0
    )
    return Bert(config)


@pytest.mark.parametrize("longest", [14, 23, 64])
def test_windows_hold_the_whole_text_and_the_right_answer_where_they_hold_all_of_it(longest):
    splitter = Splitter(VOCABULARY)
    windows = windows_of(splitter, QUESTIONS, longest)
    for number, one in enumerate(QUESTIONS):
        mine = [window for window in windows if window.question == number]
        assert {passage for window in mine for passage in window.passages} == {*words_of(one.text)}
        for window in mine:
            assert len(window.ids) <= longest
            held = [one.text[passage.begin : passage.end] for passage in window.passages]
            inside = one.answer_texts and set(parts(one.answers[0], one.text)) <= {*window.passages}
            if not inside:
                assert (window.begin, window.end) == (CLS, CLS)
                continue
            words = held[window.begin - window.first : window.end - window.first + 1]
            assert " ".join(words) == one.answer_texts[0]
            assert window.candidates[window.begin]
        assert any(window.begin != CLS for window in mine) == bool(one.answer_texts)


def words_of(text: str) -> list[Passage]:
    """Where the words of a text are, with its full stops apart."""
    return [Passage(*found.span()) for found in re.finditer(r"\w+|\.", text)]


def parts(answer: Passage, text: str) -> list[Passage]:
    return [one for one in words_of(text) if answer.begin <= one.begin and one.end <= answer.end]


def test_the_loss_is_the_mean_of_beginning_and_end_over_windows_however_the_batch_is_filled_up():
    task, model = prepared(23), tiny(23).eval()
    rows = [0, 3, 7, len(task.train) - 1]
    batch = task.batch(rows)
    filled = task.batch(rows, filled=True)
    assert filled.tokens_read.shape[0] == 200 // filled.tokens_read.shape[1] > len(rows)
    each = []
    for row in rows:
        window = task.train[row]
        segments = [0] * window.first + [1] * (len(window.ids) - window.first)
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([window.ids]), torch.tensor([segments])))[0].double()
        kept = [0, *range(window.first, len(window.ids) - 1)]
        for side, place in enumerate((window.begin, window.end)):
            scores = {at: float(logits[at, side]) for at in kept}
            each.append(math.log(sum(math.exp(score) for score in scores.values())) - scores[place])
    assert task.loss(model, batch).item() == pytest.approx(sum(each) / len(each), rel=1e-5)
    assert task.loss(model, filled).item() == pytest.approx(sum(each) / len(each), rel=1e-5)
    assert (filled.targets == IGNORE).any()


def test_a_tiny_model_learns_eight_questions_one_of_which_has_no_answer():
    questions = []
    for name, place in zip(NAMES, PLACES, strict=True):
        text = f"{name} lives {place}."
        questions += [asked(f"Where is {name}?", place, text), asked(f"Who lives {place}?", name, text)]
    questions[-1] = Question("Eve?", questions[-1].text)
    task, model = prepared(20, questions, batch_tokens=2000), tiny(20)
    before = task.validate(model.eval())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(80):
        (rows,) = task.epoch(number)
        optimizer.zero_grad()
        task.loss(model.train(), task.batch(rows)).backward()
        optimizer.step()
    after = task.validate(model.eval())
    assert (after["exact"], after["f1"]) == (1.0, 1.0)
    assert after["loss"] < 0.1 < 1 < before["loss"]
    assert before["exact"] < 1.0


def test_an_epoch_has_every_window_once_and_the_data_decide_the_sizes():
    task = prepared(16)
    assert sorted(row for rows in task.epoch(0) for row in rows) == [*range(len(task.train))]
    assert task.describe() == f"8 questions, {len(task.train)} windows"
    data = LoadedData({}, questions={"train": QUESTIONS})
    assert AnsweringTask.sizes(data, VOCABULARY) == {"vocabulary_size": len(VOCABULARY), "head": "span"}
    assert AnsweringTask.splits(data) == ["train"]
    assert task.examine(tiny(16).eval(), data, "train")[:2] == (8, "questions")


def test_what_cannot_be_learned_is_said():
    with pytest.raises(InputError, match=r"train\.label_smoothing is for labels"):
        prepared(16, label_smoothing=0.1)
    with pytest.raises(InputError, match=r"model\.max_length = 4 has no room for a question and a text"):
        prepared(4)


def test_an_answer_of_which_the_tokenizer_leaves_nothing_is_no_answer(tmp_path):
    question = Question("cat?", "a \x01\x02 cat", (Passage(2, 4),))
    (window,) = windows_of(Splitter(tiny_tokenizer(tmp_path)), [question], 32)
    assert (window.begin, window.end) == (CLS, CLS)

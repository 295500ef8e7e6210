"""Question answering task: windows of long texts, their targets, the loss, and training."""

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.datasets.dataset import QuestionDataset
from qkv.datasets.examples.squad import Passage, Question
from qkv.errors import InputError
from qkv.models.bert import Bert, BertConfig
from qkv.pipelines.inputs.text_inputs import IGNORE, ExampleEncoder
from qkv.pipelines.inputs.windows import CLS, make_windows
from qkv.tasks.question_answering import QuestionAnsweringTask
from qkv.tokenizers import WordTokenizer
from tests.tasks.settings import prepare
from tests.tasks.tiny_bert import tiny_tokenizer

LOCATIONS = ("in Rome", "on the hill", "at home", "by the old lake")
NAMES = ("Ada", "Bo", "Cy", "Di")
TEXT = " ".join(f"{name} lives {location}." for name, location in zip(NAMES, LOCATIONS, strict=True))


def make_question(question: str, answer: str, text: str = TEXT) -> Question:
    begin = text.index(answer)
    return Question(question, text, (Passage(begin, begin + len(answer)),))


QUESTIONS = [
    *(make_question(f"Where is {name}?", location) for name, location in zip(NAMES, LOCATIONS, strict=True)),
    *(make_question(f"Who lives {location}?", name) for name, location in zip(NAMES[:3], LOCATIONS[:3], strict=True)),
    Question("Where is Eve?", TEXT),
]
TOKENIZER = WordTokenizer.train([TEXT, *(one.question for one in QUESTIONS)])


def prepared(longest: int, questions: list[Question] = QUESTIONS, **train: Any) -> QuestionAnsweringTask:
    data = QuestionDataset({"train": questions, "valid": questions})
    model = SimpleNamespace(max_length=longest)
    return prepare(QuestionAnsweringTask, data, TOKENIZER, model, **{"batch_size": 200, **train})


def tiny(longest: int) -> Bert:
    torch.manual_seed(0)
    sizes = {"vocab_size": len(TOKENIZER), "dim": 48, "heads": 3, "layers": 2, "max_length": longest}
    return Bert(BertConfig(head="span", **sizes, dropout=0.0, attention_dropout=0.0))


@pytest.mark.parametrize("longest", [14, 23, 64])
def test_windows_cover_the_text_and_have_the_answer_they_contain(longest):
    encoder = ExampleEncoder(TOKENIZER)
    windows = make_windows(encoder, QUESTIONS, longest)
    for number, question in enumerate(QUESTIONS):
        own_windows = [window for window in windows if window.question == number]
        assert {passage for window in own_windows for passage in window.passages} == {*words_of(question.text)}
        for window in own_windows:
            assert len(window.ids) <= longest
            pieces = [question.text[passage.begin : passage.end] for passage in window.passages]
            inside = question.answer_texts and set(parts(question.answers[0], question.text)) <= {*window.passages}
            if not inside:
                assert (window.begin, window.end) == (CLS, CLS)
                continue
            words = pieces[window.begin - window.first : window.end - window.first + 1]
            assert " ".join(words) == question.answer_texts[0]
            assert window.candidates[window.begin]
        assert any(window.begin != CLS for window in own_windows) == bool(question.answer_texts)


def words_of(text: str) -> list[Passage]:
    """Spans of the words of a text, with its full stops apart."""
    return [Passage(*match.span()) for match in re.finditer(r"\w+|\.", text)]


def parts(answer: Passage, text: str) -> list[Passage]:
    return [word for word in words_of(text) if answer.begin <= word.begin and word.end <= answer.end]


def test_loss_is_the_mean_over_windows_with_and_without_padding():
    task, model = prepared(23), tiny(23).eval()
    rows = [0, 3, 7, len(task.train) - 1]
    batch = task.batch(rows)
    padded = task.batch(rows, padded_to_shape=True)
    assert padded.token_ids.shape[0] == 200 // padded.token_ids.shape[1] > len(rows)
    losses = []
    for row in rows:
        window = task.train[row]
        segments = [0] * window.first + [1] * (len(window.ids) - window.first)
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([window.ids]), torch.tensor([segments])))[0].double()
        candidates = [0, *range(window.first, len(window.ids) - 1)]
        for side, target in enumerate((window.begin, window.end)):
            scores = {position: float(logits[position, side]) for position in candidates}
            losses.append(math.log(sum(math.exp(score) for score in scores.values())) - scores[target])
    assert task.loss(model, batch).item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert task.loss(model, padded).item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert (padded.targets == IGNORE).any()


def test_a_tiny_model_learns_eight_questions():
    questions = []
    for name, location in zip(NAMES, LOCATIONS, strict=True):
        text = f"{name} lives {location}."
        questions += [
            make_question(f"Where is {name}?", location, text),
            make_question(f"Who lives {location}?", name, text),
        ]
    questions[-1] = Question("Eve?", questions[-1].text)
    task, model = prepared(20, questions, batch_size=2000), tiny(20)
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


def test_an_epoch_has_every_window_once_and_sizes_come_from_the_data():
    task = prepared(16)
    assert sorted(row for rows in task.epoch(0) for row in rows) == [*range(len(task.train))]
    assert task.describe() == f"8 questions, {len(task.train)} windows"
    data = QuestionDataset({"train": QUESTIONS})
    assert QuestionAnsweringTask.sizes(data, TOKENIZER) == {"vocab_size": len(TOKENIZER)}
    assert QuestionAnsweringTask.splits(data) == ["train"]
    evaluation = task.evaluate(tiny(16).eval(), data, "train")
    assert (evaluation.size, evaluation.unit) == (8, "questions")


def test_invalid_settings_are_errors():
    with pytest.raises(InputError, match="label_smoothing"):
        prepared(16, label_smoothing=0.1)
    with pytest.raises(InputError, match=r"model\.max_length = 4"):
        prepared(4)


def test_an_answer_without_tokens_is_no_answer(tmp_path):
    question = Question("cat?", "a \x01\x02 cat", (Passage(2, 4),))
    (window,) = make_windows(ExampleEncoder(tiny_tokenizer(tmp_path)), [question], 32)
    assert (window.begin, window.end) == (CLS, CLS)

"""Questions about stories: the mean error of the tasks, and training a memory network and a text encoder."""

import math

import pytest
import torch

from qkv.datasets.dataset import StoryDataset
from qkv.datasets.examples.stories import StoryQuestion
from qkv.models.bert import Bert, BertConfig
from qkv.tasks.story_answering import StoryAnsweringTask, StoryClassificationTask, latest_first, story_scores
from tests.tasks.settings import prepare
from tests.tasks.stories import memory_network, questions, story_data

SETTINGS = {"batch_size": 16, "batch_by": "examples"}


def test_the_mean_error_weights_tasks_equally_and_unknown_answers_are_errors():
    p = torch.tensor([[0.5, 0.5 - 1e-9], [0.25, 0.75], [0.25, 0.75], [0.25, 0.75], [0.9, 0.1]])
    scores = story_scores(p.log(), torch.tensor([0, 1, 0, -1, 0]), [7, 7, 7, 7, 9])
    assert scores["error_7"] == 0.5
    assert scores["error_9"] == 0.0
    assert scores["error"] == 0.25  # not 2 of 5
    assert scores["loss"] == pytest.approx(-sum(map(math.log, (0.5, 0.75, 0.25, 0.9))) / 4)


def test_a_memory_network_learns_to_answer():
    data, tokenizer = story_data()
    model = memory_network(time_noise=0.0)
    task = prepare(StoryAnsweringTask, data, tokenizer, model.config, **SETTINGS)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=2e-2)
    for epoch in range(40):
        for rows in task.epoch(epoch):
            loss = task.loss(model, task.batch(rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    evaluation = task.evaluate(model.eval(), data, "test")
    assert evaluation.size == 48
    assert evaluation.scores["error"] == evaluation.scores["error_1"] == evaluation.scores["error_2"] == 0.0
    assert task.validate(model).keys() == {"loss", "error"}
    assert [sample.output for sample in task.samples(model, 3)] == [one.answer for one in questions()[:3]]


def test_an_epoch_has_every_question_once_in_an_order_of_the_seed():
    data, tokenizer = story_data()
    task = prepare(StoryAnsweringTask, data, tokenizer, memory_network().config, **SETTINGS)
    assert sorted(row for rows in task.epoch(0) for row in rows) == [*range(48)]
    assert task.epoch(0) == task.epoch(0) != task.epoch(1)


def test_long_stories_keep_their_latest_sentences():
    data, tokenizer = story_data()
    task = prepare(StoryAnsweringTask, data, tokenizer, memory_network(max_memories=2).config, **SETTINGS)
    batch = task.batch([0])
    assert batch["lengths"].tolist() == [2]
    ids = tokenizer.encode([text.rstrip(".") for text in questions()[0].sentences[1:]])
    assert batch["story"][0].tolist() == ids


def test_padding_does_not_change_the_answers():
    data, tokenizer = story_data()
    short = StoryQuestion(("Ada went to the hall.",), "Where is Ada?", "hall", 1)
    model = memory_network()
    task = prepare(StoryAnsweringTask, data, tokenizer, model.config, **SETTINGS)
    together = task.log_probabilities(model, [*questions()[:3], short])
    torch.testing.assert_close(together[-1], task.log_probabilities(model, [short])[0])


def test_an_answer_that_no_training_question_has_does_not_stop_the_evaluation():
    data, tokenizer = story_data()
    unseen = StoryQuestion(("Ada went to the hall.",), "Where is Ada?", "moon", 3)
    data = StoryDataset({**data.splits, "test": [unseen, *questions()]})
    model = memory_network()
    scores = prepare(StoryAnsweringTask, data, tokenizer, model.config, **SETTINGS).evaluate(model, data, "test").scores
    assert scores["error_3"] == 1.0
    assert math.isfinite(scores["loss"])


def test_a_text_encoder_reads_the_question_before_the_latest_sentence():
    data, tokenizer = story_data()
    first = questions()[0]
    assert latest_first(first) == " ".join((first.question, *first.sentences[::-1]))
    sizes = {**StoryClassificationTask.sizes(data, tokenizer), "dim": 32, "heads": 2, "layers": 1, "ffn_dim": 64}
    torch.manual_seed(0)
    model = Bert(BertConfig(**sizes, head="classifier", max_length=32, dropout=0.0, attention_dropout=0.0))
    task = prepare(StoryClassificationTask, data, tokenizer, model.config, **SETTINGS)
    batch = task.batch([0])
    assert batch.token_ids[0, 1:-1].tolist() == tokenizer.encode([latest_first(first)])[0]
    assert model.labels[int(batch.targets[0])] == first.answer
    task.loss(model, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    scores = task.evaluate(model.eval(), data, "test").scores
    assert scores.keys() == {"loss", "error", "error_1", "error_2"}
    assert scores["error"] == pytest.approx((scores["error_1"] + scores["error_2"]) / 2)

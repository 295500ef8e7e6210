"""The dialogue tasks: histories, losses against plain loops, memorized dialogues, evaluation, and bad recipes."""

import math

import pytest
import torch

from qkv.datasets.dataset import DialogueDataset
from qkv.datasets.examples.dialogue import Dialogue
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.metrics.dialogue_metrics import distinct
from qkv.tasks.dialogue import DialogueLMTask, DialogueTask
from qkv.training.recipe import Recipe
from tests.pipelines.chat_bots import DATA, DIALOGUES, dialogue_model
from tests.tasks.settings import prepare

LIMITS = {"history_turns": 2, "history_tokens": 32, "response_tokens": 16}
MODELS = [("gru", DialogueTask), ("transformer", DialogueTask), ("gpt", DialogueLMTask)]


def prepared(name, task_class, data=DATA, **settings):
    model = dialogue_model(name)
    options = {"batch_size": 256, **LIMITS, **({"length": 32} if task_class is DialogueLMTask else {}), **settings}
    return prepare(task_class, data, model.tokenizer, model.config, **options), model


def loop_loss(model, task, name):
    """Mean of -log p over the tokens of the validation responses, one at a time in float64."""
    tokenizer, nats, count = task.tokenizer, 0.0, 0
    for pair in task.valid.pairs:
        source = tokenizer.encode(pair.source, add_special_tokens=True)
        response = [*tokenizer.target.encode(pair.target), tokenizer.special_tokens.end]
        for index, token in enumerate(response):
            if name == "gpt":
                logits = model(torch.tensor([[*source, *response[:index]]]))[0, -1]
            else:
                target = torch.tensor([[tokenizer.special_tokens.begin, *response[:index]]])
                logits = model(torch.tensor([source]), target, torch.tensor([len(source)]))[0, -1]
            nats -= float(logits.double().log_softmax(dim=-1)[token])
            count += 1
    return nats / count, count


@pytest.mark.parametrize("task_class", [DialogueTask, DialogueLMTask])
def test_each_turn_but_the_first_is_a_response_to_the_turns_before_it(task_class):
    task, _ = prepared("gpt" if task_class is DialogueLMTask else "gru", task_class)
    assert [(pair.source, pair.target) for pair in task.valid.pairs] == [
        ("hi there", "hello"),
        ("hi there\nhello", "how are you?"),
        ("hello\nhow are you?", "fine, and you?"),
        ("how are you?\nfine, and you?", "good"),
        ("do you like cats?", "yes, cats are great"),
        ("do you like cats?\nyes, cats are great", "dogs too?"),
    ]
    for pair, tokens in zip(task.valid.pairs, task.valid.tokens, strict=True):
        assert [*tokens.source] == task.tokenizer.encode(pair.source, add_special_tokens=True)
        assert [*tokens.target] == task.tokenizer.target.encode(pair.target)


@pytest.mark.parametrize(("name", "task_class"), MODELS)
def test_the_loss_is_that_of_a_plain_loop_over_response_tokens(name, task_class):
    task, model = prepared(name, task_class)
    with torch.inference_mode():
        expected, count = loop_loss(model, task, name)
    scores = task.validate(model)
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert sum(len(pair.target) + 1 for pair in task.valid.tokens) == count


def test_a_language_model_is_trained_on_whole_dialogues():
    task, model = prepared("gpt", DialogueLMTask)
    assert [[*ids] for ids in task.train] == [task.tokenizer.encode(dialogue.text) for dialogue in DIALOGUES]
    (rows,) = task.epoch(0)
    task.loss(model, task.batch(rows)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert float(model.embed.weight.grad[task.tokenizer.vocab["<speaker2>"]].norm()) > 0


def test_the_training_loss_of_an_encoder_decoder_is_that_of_its_responses():
    task, model = prepared(
        "transformer", DialogueTask, DialogueDataset({"train": DIALOGUES[:2], "valid": DIALOGUES[:2]})
    )
    (rows,) = task.epoch(0)
    loss = task.loss(model, task.batch(rows))
    assert loss.item() == pytest.approx(task.validate(model)["loss"], rel=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "task_class"), [*(pytest.param(*model, marks=pytest.mark.slow) for model in MODELS[:2]), MODELS[2]]
)
def test_a_few_dialogues_are_memorized(name, task_class):
    shorter = [Dialogue(dialogue.turns[:-1]) for dialogue in DIALOGUES]  # in which the speakers are exchanged
    data = DialogueDataset({"train": DIALOGUES + shorter, "valid": DIALOGUES[:2], "test": DIALOGUES[1:]})
    task, model = prepared(name, task_class, data, history_turns=8)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-2)
    for epoch in range(80):
        for rows in task.epoch(epoch):
            optimizer.zero_grad()
            task.loss(model, task.batch(rows)).backward()
            optimizer.step()
    model.eval()
    assert task.validate(model)["perplexity"] < 2
    assert task.samples(model, 1)[0].output == "hello"
    evaluation = task.evaluate(model, data, "test", GenerationConfig(num_beams=2))
    assert (evaluation.size, evaluation.skipped) == (4, 0)
    assert evaluation.scores["perplexity"] < 2
    assert evaluation.scores["distinct_1"] == distinct(evaluation.outputs, 1)
    assert evaluation.scores["distinct_2"] == distinct(evaluation.outputs, 2)
    assert "tokens:" in evaluation.signatures["perplexity"]


def test_long_responses_are_skipped_and_of_a_long_turn_the_end_is_given():
    long = " ".join(["how are you?"] * 20)
    data = DialogueDataset({"train": [Dialogue((long, "hello", long, "good"))], "valid": DIALOGUES})
    task, _ = prepared("gru", DialogueTask, data)
    sources = [pair.source for pair in task.train.pairs]
    assert [pair.target for pair in task.train.pairs] == ["hello", "good"]
    assert all(long.endswith(source) and len(source) < len(long) for source in sources)
    assert all(len(pair.source) <= LIMITS["history_tokens"] for pair in task.train.tokens)
    assert any("skipped 1 training" in note for note in task.notes)
    with pytest.raises(InputError, match="response_tokens"):
        prepared("gru", DialogueTask, response_tokens=1)


@pytest.mark.parametrize(
    ("task", "model", "data", "words"),
    [
        ({"name": "dialogue", "history_tokens": 600}, "rnn_seq2seq", {}, "max_length"),
        ({"name": "dialogue_lm", "history_tokens": 400, "response_tokens": 700}, "gpt2", {}, "max_length"),
        ({"name": "dialogue", "history_tokens": 2}, "rnn_seq2seq", {}, "history_tokens"),
        ({"name": "dialogue", "history_turns": 0}, "rnn_seq2seq", {}, "history_turns"),
        ({"name": "dialogue", "bpe_dropout": 0.1}, "transformer", {}, "bpe_dropout"),
        ({"name": "dialogue"}, "transformer", {"tokenizer": "bpe"}, "dialogue"),
        ({"name": "dialogue"}, "gpt2", {}, "model"),
        ({"name": "dialogue_lm"}, "transformer", {}, "model"),
        ({"name": "translate"}, "transformer", {}, "data"),
    ],
)
def test_recipes_that_do_not_fit_are_errors(task, model, data, words):
    table = {"task": task, "data": {"name": "chitchat", "tokenizer": "dialogue", **data}, "model": {"name": model}}
    with pytest.raises(InputError, match=words):
        Recipe.from_table(table, "recipe")


def test_the_tokenizer_of_dialogues_is_for_dialogues_only():
    table = {"task": "translate", "data": {"name": "dates", "tokenizer": "dialogue"}, "model": {"name": "rnn_seq2seq"}}
    with pytest.raises(InputError, match="tokenizer"):
        Recipe.from_table(table, "recipe")

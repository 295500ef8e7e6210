"""Scheduled sampling: the schedules, and training with them."""

import math

import pytest
import torch

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.nn.interfaces import predicted_tokens
from qkv.tasks.base.scheduled_sampling import ScheduledSampling
from qkv.tasks.translation import TranslationTask
from tests.models.contract import CASES
from tests.tasks.settings import prepare, tokenizer_of

PAIRS = [Pair(source, source[::-1]) for source in ("abc", "cab", "bca", "aab", "cc", "ba")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "linear"}, [0.0, 0.005, 0.05, 0.5]),
        ({"schedule": "linear", "k": 0.8, "slope": 0.1, "minimum": 0.3}, [0.2, 0.3, 0.7, 0.7]),
        ({"schedule": "exponential"}, [0.0, 0.01, 1 - 0.99**10, 1 - 0.99**100]),
        ({"schedule": "inverse_sigmoid", "k": 2.0},
         [1 - 2 / (2 + math.exp(percent / 2)) for percent in (0, 1, 10, 100)]),
    ],
)  # fmt: skip
def test_probabilities_after_0_1_10_and_100_percent(options, expected):
    schedule = ScheduledSampling(**options)
    assert [schedule.probability(percent / 100) for percent in (0, 1, 10, 100)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "options",
    [{"k": 1.5}, {"schedule": "exponential", "k": 2.0}, {"schedule": "inverse_sigmoid", "k": 0.5}, {"schedule": "x"}],
)
def test_impossible_schedules_are_errors(options):
    with pytest.raises(InputError):
        ScheduledSampling(**options)


def prepared(model, **options):
    data = PairDataset({"train": PAIRS, "valid": PAIRS})
    tokenizer = tokenizer_of([pair.source for pair in PAIRS], "char")
    config = CASES[model].build(source_vocab_size=len(tokenizer), target_vocab_size=len(tokenizer)).config
    return prepare(TranslationTask, data, tokenizer, config, scheduled_sampling=ScheduledSampling(**options)), config


@pytest.mark.parametrize("name", ["rnn_seq2seq", "transformer", "conv_seq2seq"])
def test_models_learn_with_a_schedule(name):
    task, config = prepared(name, schedule="linear", slope=0.01, minimum=0.5)
    torch.manual_seed(0)
    model = type(CASES[name].build())(config).train()
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for epoch in range(12):
        task.set_progress(epoch / 11)
        for rows in task.epoch(epoch):
            loss = task.loss(model, task.batch(rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert task.sampling_probability == 0.5
    assert not task.capturable
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


@torch.no_grad()
def test_a_linear_schedule_starts_with_teacher_forcing():
    task, config = prepared("transformer")
    task.set_progress(0.0)
    model = type(CASES["transformer"].build())(config).eval()
    (rows,) = task.epoch(0)
    loss = task.loss(model, task.batch(rows))
    task.options = task.options.replace(scheduled_sampling=None)
    torch.testing.assert_close(loss, task.loss(model, task.batch(rows)))


@torch.no_grad()
def test_a_parallel_decoder_feeds_its_own_predictions():
    case = CASES["transformer"]
    model, batch = case.build().eval(), case.batch()
    memory, target = model.encode(batch.inputs[0], batch.lengths), batch.inputs[1]
    teacher = model.decode(target, memory)
    torch.testing.assert_close(model.decode_with_sampling(target, memory, 0.0), teacher)
    own = torch.cat((target[:, :1], teacher.argmax(-1)[:, :-1]), dim=1)
    torch.testing.assert_close(model.decode_with_sampling(target, memory, 1.0), model.decode(own, memory))


def test_sampled_tokens_have_the_probabilities_of_the_model():
    torch.manual_seed(0)
    p = torch.tensor([0.1, 0.6, 0.3])
    tokens = predicted_tokens(p.log().expand(20, 500, 3), sample=True)
    assert tokens.shape == (20, 500)
    torch.testing.assert_close(tokens.flatten().bincount() / 10_000, p, atol=0.02, rtol=0)
    assert predicted_tokens(p.log().expand(2, 3), sample=False).tolist() == [1, 1]

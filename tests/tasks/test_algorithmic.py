"""Algorithmic sequence task: batches, loss, wrong bits, and training."""

import json
import math
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from qkv.cli.commands.evaluate import evaluate
from qkv.datasets.corpora.synthetic.bit_sequences import Copy, Puzzle, RepeatCopy, Sequences, Stream
from qkv.datasets.dataset import Dataset, SequenceDataset
from qkv.errors import InputError
from qkv.models.memory.lstm_baseline import LSTMBaseline, LSTMBaselineConfig
from qkv.models.memory.ntm import NTM, NTMConfig
from qkv.tasks.algorithmic import AlgorithmicTask, SequenceBatch
from qkv.training import job
from qkv.training.optimizer import adamw
from qkv.training.recipe import TrainConfig, read_recipe
from qkv.training.step import TrainStep
from tests.datasets.build import load
from tests.tasks.settings import prepare


class Short(Puzzle):
    """A copy of one or two vectors."""

    train_sizes: ClassVar = ((1,), (2,))
    eval_sizes: ClassVar = ((2,), (3,))

    def generate(self, key: str, count: int, size: tuple[int, ...]) -> Sequences:
        return Copy(self.bits).generate(key, count, size)


def short() -> Dataset[Any]:
    puzzle = Short(bits=3)
    return SequenceDataset({split: Stream(puzzle, split, 9) for split in ("train", "valid", "test")})


def prepared(data: Dataset[Any] | None = None, **train: Any) -> AlgorithmicTask:
    return prepare(AlgorithmicTask, data or short(), None, None, **{"batch_size": 4, **train})


def small(task: AlgorithmicTask, **changes: Any) -> NTM:
    torch.manual_seed(0)
    sizes = AlgorithmicTask.sizes(SequenceDataset({"train": task.train}), None)
    return NTM(NTMConfig(**{**sizes, "hidden_dim": 16, "locations": 8, "location_dim": 6, **changes}))


def test_model_sizes_come_from_the_data():
    config = small(prepared(load("repeat_copy"))).config
    assert (config.input_dim, config.output_dim) == (10, 9)


def test_epochs_are_consecutive_full_batches():
    task = prepared()
    assert task.epoch(0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert task.epoch(2)[0] == [24, 25, 26, 27]
    again = prepared()
    rows = task.epoch(3)[1]
    assert task.batch(rows).inputs.equal(again.batch(rows).inputs)
    assert any(
        not torch.equal(task.batch(rows).inputs, task.batch(other).inputs)
        for other in task.epoch(4)
        if task.batch(other).inputs.shape == task.batch(rows).inputs.shape
    )


def test_a_curriculum_begins_with_the_smallest_size_and_ends_with_all():
    puzzle = load("repeat_copy").splits["train"].puzzle
    assert puzzle.sizes_up_to(0.0) == [(1, 1)]
    assert puzzle.sizes_up_to(0.5) == [(length, times) for length in range(1, 6) for times in range(1, 6)]
    assert puzzle.sizes_up_to(1.0) == list(puzzle.train_sizes)

    task, plain = (prepared(load("recall"), epochs=2, curriculum=curriculum) for curriculum in (0.5, 0.0))
    batches = [rows for number in range(2) for rows in task.epoch(number)]
    steps = [task.batch(rows).inputs.shape[1] for rows in (*batches[:40], *batches[-40:])]
    smallest, largest = ((items + 1) * 4 + 4 for items in (2, 6))
    assert set(steps[:40]) == {smallest}
    assert max(steps[40:]) == largest
    middle = [task.batch(rows).inputs.shape[1] for rows in batches[len(batches) // 4 :][:200]]
    assert max(middle) == (4 + 1) * 4 + 4  # half of the range of 2 ... 6 items
    for rows in batches[-40:]:  # all sizes: the same sequences as without a curriculum
        assert torch.equal(task.batch(rows).inputs, plain.batch(rows).inputs)


def test_a_padded_batch_has_the_same_loss():
    task = prepared()
    model = small(task).eval()
    plain, padded = task.batch([0, 1]), task.batch([0, 1], padded_to_shape=True)
    assert plain.inputs.shape[1] % 8
    assert padded.inputs.shape[1] == 8
    assert padded.tokens == plain.tokens == 2 * 3 * int(plain.answer_mask.sum())
    torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))


def test_padding_reduces_the_number_of_shapes():
    for puzzle, shapes in ((Copy(), 6), (RepeatCopy(), 14)):
        batches = (
            SequenceBatch.from_sequences(puzzle.generate("key", 1, size), padded_to_shape=True)
            for size in puzzle.train_sizes
        )
        assert len({batch.inputs.shape for batch in batches}) == shapes


def test_loss_and_wrong_bits_equal_a_loop_over_the_answer():
    task = prepared()
    model = small(task).eval()
    losses_by_size, bits = {}, {}
    for size in ((1,), (2,), (3,)):
        sequences = task.valid.of_size(size)
        losses, wrong = [], 0
        for inputs, targets in zip(sequences.inputs, sequences.targets, strict=True):
            logits = model(torch.from_numpy(inputs)[None])[0].double()
            for step in range(len(targets) - size[0], len(targets)):
                for logit, target in zip(logits[step].tolist(), targets[step], strict=True):
                    p = 1 / (1 + math.exp(-logit))
                    losses.append(-math.log(p if target else 1 - p))
                    wrong += (p > 0.5) != bool(target)
        losses_by_size[size], bits[size] = sum(losses) / len(losses), wrong / 9
    scores = task.validate(model)
    assert scores["loss"] == pytest.approx((losses_by_size[1,] + losses_by_size[2,]) / 2, rel=1e-5)
    assert scores["bits"] == pytest.approx((bits[1,] + bits[2,]) / 2)
    assert (scores["bits_at_2"], scores["bits_at_3"]) == pytest.approx((bits[2,], bits[3,]))
    evaluation = task.evaluate(model, short(), "test")
    assert (evaluation.size, evaluation.unit, set(evaluation.scores)) == (27, "sequences", set(scores))
    batch = SequenceBatch.from_sequences(task.valid.of_size((2,)))
    assert task.loss(model, batch).item() == pytest.approx(losses_by_size[2,], rel=1e-5)


def train(model: Any, task: AlgorithmicTask, batch: SequenceBatch, steps: int, lr: float) -> list[float]:
    """Train for `steps` steps and return their losses."""
    optimizer = adamw(model.parameters(), TrainConfig(lr=lr, weight_decay=0.0))
    passes: TrainStep[SequenceBatch] = TrainStep(model, lambda batch: task.loss(model, batch), "float32", 0.1)
    losses = []
    for _ in range(steps):
        losses.append(float(passes(batch).loss))
        optimizer.step()
    return losses


def eight() -> SequenceBatch:
    return SequenceBatch.from_sequences(Short(bits=3).generate("eight", 8, (2,)))


def build_model(kind: str, task: AlgorithmicTask) -> Any:
    torch.manual_seed(0)
    return (
        LSTMBaseline(LSTMBaselineConfig(input_dim=5, output_dim=3, hidden_dim=24))
        if kind == "baseline"
        else small(task, controller=kind)
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("kind", "golden"), [("lstm", 0.4751), ("feedforward", 0.4679), ("baseline", 0.4849)])
def test_golden_loss_after_20_steps(kind, golden):
    task = prepared()
    assert train(build_model(kind, task), task, eight(), 20, 3e-2)[-1] == pytest.approx(golden, rel=1e-3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["lstm", "feedforward", "baseline"])
def test_a_model_memorises_eight_sequences(kind):
    task = prepared()
    losses = train(build_model(kind, task), task, eight(), 160, 3e-2)
    assert losses[0] > 0.6
    assert min(losses) < 0.014  # log 2 / 48: none of the 48 bits can be wrong


def test_best_by_must_be_a_metric_of_the_puzzle():
    assert prepared(best_by="bits_at_3").train_config.best_by == "bits_at_3"
    with pytest.raises(InputError, match="'bits_at_120'"):
        prepared(best_by="bits_at_120")


@pytest.mark.usefixtures("unchecked")
def test_a_run_can_be_resumed_and_evaluated(tmp_path: Path, capsys):
    sizes = ["model.hidden_dim=4", "model.locations=3", "model.location_dim=2", "data.size=4", "train.batch_size=4"]
    recipe = read_recipe("recall-ntm", [*sizes, "train.epochs=2", "train.save_every=1", "train.validate_every=9"])
    whole = job.begin(recipe, tmp_path / "run", "cpu")
    assert whole.state.finished
    expected = (whole.run.checkpoints[-1] / "model.safetensors").read_bytes()
    shutil.rmtree(whole.run.checkpoints[-1])
    again = job.resume(tmp_path / "run", "cpu")
    assert (again.run.checkpoints[-1] / "model.safetensors").read_bytes() == expected
    capsys.readouterr()
    evaluate(tmp_path / "run", split=["test"], device="cpu", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["size"] == 8 * 200
    assert 0 < found["bits_at_6"] < 18
    assert {"loss", "bits", "bits_at_10", "bits_at_15", "bits_at_20"} < set(found)

"""Skipped updates, Muon, recomputed and compiled blocks, and the profile of a run."""

import json
import math

import pytest
import torch

from qkv.errors import InputError, NotFinite
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.tasks.base.train_config import TrainConfig
from qkv.tasks.translation import TranslationTask
from qkv.training import job
from qkv.training.optimizer import build_optimizer
from qkv.training.step import StepOutput, prepare_blocks
from qkv.training.update import GuardedUpdate

CPU = torch.device("cpu")


def small_gpt(dropout: float = 0.0) -> GPT2:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "dim": 8, "heads": 2, "layers": 2, "max_length": 6}
    return GPT2(GPT2Config(**sizes, dropout=dropout, attention_dropout=0.0)).train()


def loss_of(model: GPT2) -> torch.Tensor:
    tokens = torch.arange(12).view(2, 6) % 11
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def output(loss: float, norm: float) -> StepOutput:
    return StepOutput(torch.tensor(loss), torch.tensor(norm))


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf), (-math.inf, math.nan)])
def test_an_update_that_is_not_finite_changes_nothing(loss, norm):
    model = small_gpt()
    update = GuardedUpdate(build_optimizer(model, TrainConfig()), TrainConfig(), CPU)
    loss_of(model).backward()
    before = [parameter.clone() for parameter in model.parameters()]
    assert update(3, output(loss, norm), 0.1).read().skipped
    assert all(map(torch.equal, before, model.parameters()))
    assert not update(4, output(1.0, 1.0), 0.1).read().skipped
    assert not all(map(torch.equal, before, model.parameters()))


def test_spikes_of_the_gradient_norm_are_skipped_and_do_not_move_the_average(monkeypatch):
    monkeypatch.setattr("qkv.training.update.MIN_COUNT", 3)
    model, config = small_gpt(), TrainConfig(skip_spikes=4.0)
    update = GuardedUpdate(build_optimizer(model, config), config, CPU)
    loss_of(model).backward()
    norms = [1.0, 9.0, 2.0, 17.0, 16.0, 3.0]  # the average of the first three is 4
    skipped = [update(step, output(1.0, norm), 0.0).read().skipped for step, norm in enumerate(norms)]
    assert skipped == [False, False, False, True, False, False]
    assert update.state()["average"].item() == pytest.approx((1 + 9 + 2 + 16 + 3) / 5)
    again = GuardedUpdate(build_optimizer(model, config), config, CPU)
    again.restore(update.state())
    assert again(7, output(1.0, 25.0), 0.0).read().skipped


def test_a_run_can_skip_updates_that_are_not_finite(tiny, tmp_path, monkeypatch):
    real, calls = TranslationTask.loss, []

    def poisoned(self, model, batch):
        calls.append(1)
        return real(self, model, batch) * (math.nan if len(calls) == 6 else 1.0)

    monkeypatch.setattr(TranslationTask, "loss", poisoned)
    recipe = tiny.replace(train=tiny.train.replace(on_nonfinite="skip"))
    done = job.begin(recipe, tmp_path / "run", "cpu", force=True)
    assert done.state.finished

    monkeypatch.setattr(TranslationTask, "loss", lambda self, model, batch: real(self, model, batch) * math.nan)
    with pytest.raises(NotFinite, match="step 10: the loss is not finite"):
        job.begin(recipe, tmp_path / "always", "cpu", force=True)


def test_muon_updates_the_matrices_of_the_blocks_only():
    model, config = small_gpt(), TrainConfig(optimizer="muon", weight_decay=0.0)
    optimizer = build_optimizer(model, config)
    loss_of(model).backward()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer.step(0.01)
    for name, parameter in model.named_parameters():
        in_muon = name.startswith("blocks") and parameter.ndim == 2
        assert set(optimizer.state_of(parameter)) == (
            {"momentum_buffer"} if in_muon else {"step", "exp_avg", "exp_avg_sq"}
        )
        if in_muon:  # orthogonalized: large singular values become nearly equal
            update, gradient = (torch.linalg.svdvals(x.detach()) for x in (parameter - before[name], parameter.grad))
            assert update[4] / update[0] > max(0.5, 1.5 * gradient[4] / gradient[0])
    with pytest.raises(InputError, match="needs a model of repeated blocks"):
        build_optimizer(RNNLM(RNNLMConfig(vocab_size=5, hidden_dim=4, embedding_dim=4)), config)


def test_recomputed_blocks_have_the_same_gradients():
    gradients = []
    for recompute in (False, True):
        model = small_gpt(dropout=0.5)
        prepare_blocks(model, compiled=False, recompute=recompute)
        torch.manual_seed(1)
        loss_of(model).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.compiled
def test_compiled_blocks_have_the_same_gradients():
    gradients = []
    for compiled in (False, True):
        model = small_gpt()
        prepare_blocks(model, compiled=compiled, recompute=False)
        loss_of(model).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_a_profile_has_a_trace_and_a_table(tiny_text, tmp_path, capsys):
    job.begin(tiny_text, tmp_path / "run", "cpu", profile=True)
    table = (tmp_path / "run" / "profile" / "table.txt").read_text()
    assert "tokens/s" in table
    assert "MFU" in table
    assert "forward and backward" in table
    assert (tmp_path / "run" / "profile" / "trace.json.gz").stat().st_size
    assert "wrote" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])["step"] == 1


def test_a_run_that_is_too_short_for_a_profile_says_so(tiny, tmp_path, capsys):
    recipe = tiny.replace(train=tiny.train.replace(epochs=1, batch_size=100000))
    job.begin(recipe, tmp_path / "run", "cpu", profile=True)
    assert "--profile needs at least 15 steps; this run had 1" in capsys.readouterr().err

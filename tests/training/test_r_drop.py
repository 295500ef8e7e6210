"""R-Drop, and modules that change during training."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv import registry
from qkv.attention import Align
from qkv.datasets.batching import IGNORE
from qkv.models.rnn_seq2seq import RNNSeq2Seq
from qkv.tasks.base.task import train_tokenizer
from qkv.tasks.translation import TranslationTask
from qkv.training import job


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_r_drop_adds_the_divergence_of_two_passes_with_different_dropout(tiny, dropout):
    data = tiny.data.load()
    tokenizer = train_tokenizer(data, tiny.data)
    config = tiny.model.replace(**TranslationTask.sizes(data, tokenizer), dropout=dropout)
    task = TranslationTask(data, tokenizer, config, tiny.task.replace(r_drop=3.0), tiny.train, tiny.seed)
    torch.manual_seed(0)
    model, batch = RNNSeq2Seq(config), task.batch(range(4))
    torch.manual_seed(1)
    loss = task.loss(model, batch)

    torch.manual_seed(1)
    twice = {name: tensor.repeat(2, *[1] * (tensor.ndim - 1)) for name, tensor in batch.tensors.items()}
    logits = model(twice["source"], twice["target_in"], twice["source_lengths"])
    expected = F.cross_entropy(logits.flatten(0, 1), twice["target_out"].flatten(), ignore_index=IGNORE)
    first, second = (half[batch.target_out != IGNORE].log_softmax(dim=-1) for half in logits.chunk(2))
    divergences = [
        F.kl_div(q, p, log_target=True, reduction="batchmean") for p, q in ((first, second), (second, first))
    ]
    torch.testing.assert_close(loss, expected + 3.0 / 4 * sum(divergences))
    assert (sum(divergences) > 1e-4) == (dropout > 0)
    plain = F.cross_entropy(
        model.eval()(batch.source, batch.target_in, batch.source_lengths).flatten(0, 1),
        batch.target_out.flatten(),
        ignore_index=IGNORE,
    )
    torch.testing.assert_close(task.loss(model, batch), plain)


def test_training_sets_the_progress_of_modules_that_depend_on_it(tiny, tmp_path, monkeypatch):
    progress = []

    class Recording(nn.Module, Align):  # an align function from outside the package
        def compute_weights(self, inputs):
            return inputs.scores.softmax(dim=-1)

        def set_progress(self, done):
            progress.append(done)

    monkeypatch.setitem(registry._classes["align"], "recording", Recording)
    align = {"name": "recording"}
    recipe = tiny.replace(model=tiny.model.replace(align=align), train=tiny.train.replace(epochs=1))
    done = job.begin(recipe, tmp_path / "run", "cpu", force=True)
    assert len(progress) == done.state.step
    assert progress[0] == 0
    assert progress == sorted(set(progress))
    assert progress[-1] < 1

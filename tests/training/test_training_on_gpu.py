"""Training on a CUDA device."""

import pytest
import torch
from safetensors.torch import load_file

from qkv.pipelines.translator import Translator
from qkv.training import job
from qkv.training.recipe import read_recipe

from .stopping import stop_after

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["dates-gru", "dates-transformer"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_trained_on_gpu_gives_the_same_scores_on_both_devices(name, precision, tmp_path):
    sizes = ["data.size=20000", "train.epochs=2", "train.batch_size=2048", "train.best_by=loss"]
    done = job.begin(read_recipe(name, [*sizes, f"train.precision={precision}"]), tmp_path / "run", "cuda")
    assert done.state.finished
    assert done.state.best.value < 1.2  # nats a character; a uniform guess has 2.4 among ten digits, a dash and the end
    texts = ["Donnerstag, 5. März 2026", "5 mars 2026", "12.03.1999"]
    answers = [
        [answer.score for answer in Translator(tmp_path / "run", device=device)(texts, num_beams=3)]
        for device in ("cpu", "cuda")
    ]
    assert answers[0] == pytest.approx(answers[1], abs=2e-2)


def test_a_resumed_run_matches_an_uninterrupted_one(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        stopped = job.begin(tiny, tmp_path / "parts", "cuda")
    assert not stopped.state.finished
    assert job.resume(tmp_path / "parts", "cuda").state.finished
    whole = job.begin(tiny, tmp_path / "whole", "cuda")
    resumed, expected = (load_file(run.checkpoints[-1] / "model.safetensors") for run in (stopped.run, whole.run))
    for name, value in resumed.items():  # atomic adds on the GPU have no fixed order, so not bit for bit
        torch.testing.assert_close(value, expected[name], rtol=1e-2, atol=1e-3)

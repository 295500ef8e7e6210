"""Training on a CUDA device."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from qkv.tasks.translator import Search, Translator
from qkv.training import job
from qkv.training.recipe import read_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["dates-gru", "dates-transformer"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_learns_there_and_answers_alike_on_both_devices(name, precision, tmp_path):
    sizes = ["data.size=20000", "train.epochs=2", "train.batch_tokens=2048", "train.best_by=loss"]
    done = job.begin(read_recipe(name, [*sizes, f"train.precision={precision}"]), tmp_path / "run", "cuda")
    assert done.place.finished
    assert done.place.best.value < 1.2  # nats a character; chance is 2.4 among ten digits, a dash and the end
    texts = ["Donnerstag, 5. März 2026", "5 mars 2026", "12.03.1999"]
    answers = [
        [answer[0].score for answer in Translator(tmp_path / "run", device=device).translate(texts, Search(beam=3))]
        for device in ("cpu", "cuda")
    ]
    assert answers[0] == pytest.approx(answers[1], abs=2e-2)


def test_a_resumed_run_goes_on_from_the_same_weights_and_random_state(tiny, tmp_path, monkeypatch):
    asked = iter([False] * 8 + [True] * 100)
    with monkeypatch.context() as patch:
        patch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self: next(asked))
        stopped = job.begin(tiny, tmp_path / "parts", "cuda")
    assert not stopped.place.finished
    assert job.resume(tmp_path / "parts", "cuda").place.finished
    whole = job.begin(replace(tiny), tmp_path / "whole", "cuda")
    one, other = (load_file(folder.checkpoints[-1] / "model.safetensors") for folder in (stopped.run, whole.run))
    for name, value in one.items():  # atomics on the GPU add in any order, so not bit for bit
        torch.testing.assert_close(value, other[name], rtol=1e-2, atol=1e-3)

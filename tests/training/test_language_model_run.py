"""Runs of language models: the state carried between chunks is part of the checkpoint."""

import json

import pytest

from qkv.errors import InputError
from qkv.hub import load
from qkv.models.lstmn import LSTMNConfig
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.pipelines.generator import Generator
from qkv.pipelines.translator import Translator
from qkv.tasks.language_modeling import LanguageModelingTask
from qkv.training import job
from qkv.training.recipe import read_recipe

from .stopping import assert_bit_equal, stop_after, tensors


@pytest.mark.parametrize(
    "model",
    [
        RNNLMConfig(hidden_dim=16, weight_dropout=0.2),
        RNNLMConfig(hidden_dim=16, cell="gru", layers=1, learned_initial_state=True),
        LSTMNConfig(hidden_dim=16, embedding_dim=8, span=12),
    ],
    ids=["lstm", "gru", "lstmn"],
)
def test_resuming_is_bit_exact(model, tiny_text, tmp_path, monkeypatch):
    recipe = tiny_text.replace(model=model)
    whole = job.begin(recipe, tmp_path / "whole", "cpu")
    assert whole.state.finished
    chunks = whole.state.step // recipe.train.epochs
    assert chunks > 3
    with monkeypatch.context() as patch:
        stop_after(patch, chunks // 2)  # within an epoch
        job.begin(recipe, tmp_path / "parts", "cpu")
    carried = [name for name in tensors(tmp_path / "parts") if name.startswith("carried.")]
    assert carried
    with monkeypatch.context() as patch:
        stop_after(patch, chunks)
        assert not job.resume(tmp_path / "parts", "cpu").state.finished
    assert job.resume(tmp_path / "parts", "cpu").state.finished
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")


def test_resuming_without_the_carried_state_gives_different_weights(tiny_text, tmp_path, monkeypatch):
    """Shows that the test above would fail if the state were not saved."""
    job.begin(tiny_text, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        job.begin(tiny_text, tmp_path / "parts", "cpu")

    def reset_state(self: LanguageModelingTask, model: RNNLM, tensors: object) -> None:
        self.restored = model.init_state(self.streams)

    monkeypatch.setattr(LanguageModelingTask, "load_carried_state", reset_state)
    job.resume(tmp_path / "parts", "cpu")
    expected, resumed = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert not all(expected[name].equal(resumed[name]) for name in expected)


def test_a_run_learns_and_logs_its_metrics_and_can_be_loaded(tiny_text, tmp_path):
    model = tiny_text.model.replace(hidden_dim=32, layers=1, weight_dropout=0.0)
    recipe = tiny_text.replace(model=model, train=tiny_text.train.replace(epochs=10, lr=0.05))
    done = job.begin(recipe, tmp_path / "run", "cpu")
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    valid = [record for record in records if record["kind"] == "valid"]
    assert all(set(record) == {"step", "kind", "loss", "perplexity", "nats", "bits"} for record in valid)
    assert done.state.best.value < 0.8 < 1.5 < valid[0]["loss"]  # knowing the words but not their order gives 0.45
    model = load(tmp_path / "run")
    assert isinstance(model, RNNLM)
    assert not model.training
    words = Generator(tmp_path / "run", device="cpu")("to ", max_new_tokens=60).text.split()
    assert sum(word in ("to", "be", "or", "not") for word in words[:-1]) > len(words) // 2


def test_loading_a_run_of_another_task_is_rejected(tiny, tiny_text, tmp_path):
    job.begin(tiny_text.replace(train=tiny_text.train.replace(epochs=1)), tmp_path / "text", "cpu")
    job.begin(tiny.replace(train=tiny.train.replace(epochs=1)), tmp_path / "pairs", "cpu")
    with pytest.raises(InputError, match=r"is a language model"):
        Translator(tmp_path / "text", device="cpu")
    with pytest.raises(InputError, match="is an encoder-decoder"):
        Generator(tmp_path / "pairs", device="cpu")


@pytest.mark.parametrize(
    ("recipe", "assignment", "words"),
    [
        ("shakespeare-lstm", "model.name=rnn_seq2seq", "model.name 'rnn_seq2seq'"),
        ("dates-gru", "model.name=rnn_lm", "model.name 'rnn_lm' .*rnn_seq2seq"),
        ("shakespeare-lstm", "data.name=dates", "data.name 'dates' .*tinyshakespeare"),
        ("dates-gru", "data.name=tinyshakespeare", "data.name 'tinyshakespeare' .*pairs"),
        ("shakespeare-lstm", "train.best_by=bit", r"train\.best_by 'bit' is not known \(did you mean bits\?\)"),
        ("shakespeare-lstm", "train.best_by=bleu", r"train\.best_by 'bleu' is not known"),
        ("dates-gru", "train.best_by=blue", r"train\.best_by 'blue' is not known \(did you mean bleu\?\)"),
        ("shakespeare-lstm", "task=langage_model", r"langage_model.*did you mean language_model\?\)"),
        ("shakespeare-lstm", "model.vocab_size=9", r"model\.vocab_size is set by the data"),
        ("shakespeare-lstm", "task.length=0", r"task\.length"),
        ("dates-gru", "train.ema=1", r"train\.ema must be at least 0 and less than 1"),
        ("dates-gru", "train.patience=-1", r"train\.patience must be at least 0"),
        (
            "dates-gru",
            "task.bpe_dropout=0.1",
            r"task\.bpe_dropout needs subwords",
        ),
    ],
)
def test_an_inconsistent_recipe_is_rejected_before_data_are_loaded(recipe, assignment, words):
    with pytest.raises(InputError, match=words):
        read_recipe(recipe, [assignment])

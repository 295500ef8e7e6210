"""Captioning task: batches, metrics, pointing accuracy, and training."""

import shutil
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import CaptionDataset, Dataset
from qkv.datasets.examples.captions import Captions
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.hub import load
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.registry import lookup
from qkv.tasks.captioning import CaptioningTask, shift_with_edge
from qkv.tokenizers.trained import BEGIN, END, PAD
from qkv.training import job
from qkv.training.recipe import read_recipe
from tests.datasets.build import dataset

from .scenes import loaded, scenes
from .settings import prepare

SMALL = {
    "encoder": {"name": "cnn", "filters": [8]},
    "feature_dim": 8,
    "embedding_dim": 8,
    "hidden_dim": 16,
    "dropout": 0.0,
}
KINDS = {
    "soft": {},
    "hard": {"align": {"name": "hard", "estimator": "reinforce"}},
    "straight-through": {"align": "hard"},
    "none": {"decoder": "tell"},
}
GOLDEN = {"soft": 0.8863, "hard": 4.2696, "straight-through": 0.8584, "none": 0.9305}  # losses after 20 steps


def prepared(
    data: Dataset[Any] | None = None, tokenizer: Any = "word", longest: int = 64, **train: Any
) -> CaptioningTask:
    data = data or loaded()
    learned = CaptioningTask.train_tokenizer(data, dataset("shapes", tokenizer=tokenizer), None)
    model = ShowAttendTellConfig(vocab_size=9, max_length=longest)
    return prepare(CaptioningTask, data, learned, model, **{"batch_size": 16, **train})


def small(task: CaptioningTask, **changes: Any) -> ShowAttendTell:
    torch.manual_seed(0)
    sizes = CaptioningTask.sizes(CaptionDataset({"train": task.train}), task.tokenizer)
    return ShowAttendTell(ShowAttendTellConfig(**sizes, **{**SMALL, **changes}))


def test_model_sizes_come_from_the_data():
    config = small(prepared()).config
    assert (config.vocab_size, config.channels, config.height, config.width) == (4 + 6, 3, 8, 8)


def test_an_epoch_has_every_caption_once_in_a_new_order():
    several = scenes(20, 0)
    twice = Captions(several.images, tuple((*texts, "something") for texts in several.texts))
    task = prepared(CaptionDataset({"train": twice, "valid": several}))
    first, second, again = (task.epoch(number) for number in (0, 1, 0))
    assert sorted(row for rows in first for row in rows) == list(range(40))
    assert first == again != second
    assert task.describe() == "40 captions of 20 images"


def test_batch_targets_have_begin_and_end_tokens():
    task = prepared()
    batch = task.batch([3])
    ids = task.tokenizer.encode(task.train.texts[3][0])
    assert batch.target_in.tolist() == [[BEGIN, *ids]]
    assert batch.target_out.tolist() == [[*ids, END]]
    assert batch.tokens == 5
    assert batch.pictures.dtype == torch.uint8
    np.testing.assert_allclose(batch.images[0].numpy(), task.train.images[3] / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize("changes", [{"doubly_stochastic": 0.1}, {"decoder": "tell"}], ids=str)
def test_a_padded_batch_has_the_same_loss(changes):
    task = prepared(label_smoothing=0.1)
    model = small(task, **changes).eval()
    plain, padded = task.batch([0, 1]), task.batch([0, 1], padded_to_shape=True)
    assert padded.target_in.shape == (16, 8)
    assert padded.target_in[0, -1] == PAD
    torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))
    logits, weights = model.forward_with_weights(plain.images, plain.target_in)
    expected = F.cross_entropy(logits.flatten(0, 1), plain.target_out.flatten(), label_smoothing=0.1)
    if "doubly_stochastic" in changes:
        expected = expected + 0.1 * (1 - weights.sum(dim=1)).square().sum() / plain.tokens
    torch.testing.assert_close(task.loss(model, plain), expected)


def test_hard_attention_gets_a_gradient_from_its_rewards():
    task = prepared()
    model = small(task, align={"name": "hard", "estimator": "reinforce"}).train()
    task.loss(model, task.batch(range(16))).backward()
    assert model.decoder.attend.score.vector.grad.abs().sum() > 0  # only reached by the REINFORCE gradient


def test_shifts_vary_by_epoch_and_are_reproducible():
    task, again = (prepared(shift=2) for _ in range(2))
    rows = task.epoch(3)[0]
    again.epoch(3)
    assert task.batch(rows).pictures.equal(again.batch(rows).pictures)
    again.epoch(4)
    assert not task.batch(rows).pictures.equal(again.batch(rows).pictures)
    pictures = torch.randint(256, (50, 1, 4, 3), dtype=torch.uint8)
    expanded = F.pad(pictures.float(), (1, 1, 1, 1), mode="replicate").to(torch.uint8)
    for before, after in zip(expanded, shift_with_edge(pictures, 1, torch.Generator().manual_seed(0)), strict=True):
        shifted = [before[:, down : down + 4, right : right + 3] for down in range(3) for right in range(3)]
        assert any(candidate.equal(after) for candidate in shifted)


@pytest.mark.parametrize("tokenizer", ["word", "char", {"name": "bpe", "vocab_size": 30}], ids=str)
def test_pointing_is_scored_on_the_words_of_an_object(tokenizer, monkeypatch):
    """Attention inside the box for "square" only is scored 1, whatever the other words attend to."""
    task = prepared(tokenizer=tokenizer)
    model = small(task).eval()
    assert model.config.grid == (4, 4)
    right = True

    def read(images: torch.Tensor, target: torch.Tensor) -> tuple[None, torch.Tensor]:
        weights = torch.zeros(*target.shape, 16)
        for row, (image, tokens) in enumerate(zip(images, target.tolist(), strict=True)):
            corner = image.mean(dim=0).unflatten(0, (2, 4)).unflatten(2, (2, 4)).mean(dim=(1, 3)).flatten().argmax()
            cell = 8 * int(corner // 2) + 2 * int(corner % 2)
            for t in range(len(tokens)):
                prefix = task.tokenizer.decode([token for token in tokens[1 : t + 2] if token > END])
                at_object = len(prefix) > 1 and prefix.count(" ") == 1
                weights[row, t, cell if at_object == right else (cell + 8) % 16] = 1.0
        return None, weights

    monkeypatch.setattr(model, "forward_with_weights", read)
    assert task._pointing(model, task.valid) == 1.0
    right = False
    assert task._pointing(model, task.valid) == 0.0


def test_pointing_needs_attention_and_object_boxes():
    task = prepared()
    assert "pointing" in task.validate(small(task).eval())
    assert "pointing" not in task.validate(small(task, decoder="tell").eval())
    task.valid = replace(task.valid, objects=())
    assert "pointing" not in task.validate(small(task).eval())


def test_best_by_pointing_needs_object_boxes():
    data = loaded()
    prepared(data, best_by="pointing")
    data.splits["valid"] = replace(data.splits["valid"], objects=())
    with pytest.raises(InputError, match="best_by 'pointing'"):
        prepared(data, best_by="pointing")


def test_a_space_belongs_to_the_word_after_it():
    task = prepared(tokenizer="char")
    assert task._word_indices("a red box") == [0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_validation_loss_is_the_mean_over_tokens():
    task = prepared(batch_size=5)
    model = small(task).eval()
    losses = []
    for picture, (text,) in zip(task.valid.images, task.valid.texts, strict=True):
        ids = task.tokenizer.encode(text)
        images = torch.from_numpy(picture)[None].float() / 127.5 - 1
        log_p = model(images, torch.tensor([[BEGIN, *ids]])).log_softmax(dim=-1)[0]
        losses += [-log_p[t, token].item() for t, token in enumerate([*ids, END])]
    assert task.validate(model)["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def train(task: CaptioningTask, model: ShowAttendTell, steps: int) -> float:
    """Train for `steps` steps and return the last loss."""
    optimizer = torch.optim.Adam(model.train().parameters(), 1e-2)
    for rows in islice(chain.from_iterable(map(task.epoch, count())), steps):
        optimizer.zero_grad()
        loss = task.loss(model, task.batch(rows))
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize(("kind", "golden"), GOLDEN.items())
def test_golden_loss_after_20_steps(kind, golden):
    task = prepared(loaded(200))
    assert train(task, small(task, **KINDS[kind]), 20) == pytest.approx(golden, rel=2e-3)


def test_a_small_model_learns_it():
    task = prepared(loaded(200))
    model = small(task)
    train(task, model, 117)
    scores = task.validate(model.eval())
    assert scores["exact"] > 0.9
    assert scores["bleu"] > 90


def test_captions_that_are_too_long_are_skipped_with_a_note():
    task = prepared(longest=5)
    assert not task.notes
    data = loaded(4)
    long = replace(data.splits["train"], texts=(("a " * 9,), *data.splits["train"].texts[1:]))
    task = prepared(replace(data, splits={**data.splits, "train": long}), longest=5)
    assert task.notes == ("skipped 1 caption(s) longer than 4 tokens",)


def test_notes_of_the_dataset_are_reported():
    assert prepared(replace(loaded(4), notes=("of train",))).notes == ("of train",)
    with pytest.raises(InputError, match=r"model\.max_length = 4"):
        prepared(longest=4)


def test_features_are_used_unchanged():
    rng = np.random.default_rng(0)
    given = Captions(rng.standard_normal((6, 10, 3, 2)).astype(np.float32), (("a dog",),) * 6)
    task = prepared(CaptionDataset({"train": given, "valid": given}))
    model = small(task, encoder="features")
    assert model.config.grid == (3, 2)
    assert task.batch([2]).images.equal(torch.from_numpy(given.images[2:3]))
    assert set(task.validate(model.eval())) == {"loss", "exact", "bleu"}


def test_a_run_can_be_resumed_and_its_encoder_reused_frozen(tmp_path: Path, monkeypatch):
    data = loaded()
    monkeypatch.setattr(lookup("dataset", "shapes"), "read", lambda _: data)
    sizes = [
        "model.encoder={ name = 'cnn', filters = [8] }",
        "model.feature_dim=8",
        "model.hidden_dim=8",
        "train.batch_size=20",
        "train.epochs=2",
    ]
    whole = job.begin(read_recipe("shapes-attend", [*sizes, "train.save_every=1"]), tmp_path / "run", "cpu")
    assert whole.state.finished
    shutil.rmtree(whole.run.checkpoints[-1])
    assert job.resume(tmp_path / "run", "cpu").state.step == whole.state.step

    changes = [*sizes, "model.frozen=true", f"init={tmp_path / 'run'}"]
    job.begin(read_recipe("shapes-tell", changes), tmp_path / "frozen", "cpu")
    before, after = (load(tmp_path / name).encoder.state_dict() for name in ("run", "frozen"))
    assert all(after[name].equal(weight) for name, weight in before.items())


def test_recipes_are_validated_before_the_pictures_are_known():
    for changes in (
        ["model.encoder.name=patches", "model.encoder.patch=14"],
        ["model.encoder=features"],
        ["model.encoder.name=cnn", "model.encoder.filters=[8, 8, 8, 8]"],
    ):
        read_recipe("shapes-attend", changes)
    with pytest.raises(InputError, match="filters must be a list, not 3"):
        read_recipe("shapes-attend", ["model.encoder.name=cnn", "model.encoder.filters=3"])
    with pytest.raises(InputError, match="patch must be an integer, not 'x'"):
        read_recipe("shapes-attend", ["model.encoder.name=patches", "model.encoder.patch=x"])


@pytest.mark.parametrize("name", ["shapes-attend", "shapes-hard", "shapes-tell", "emoji-attend"])
def test_the_recipes_are_valid(name):
    config = read_recipe(name).model.replace(vocab_size=20, channels=3, height=64, width=64)
    assert config.grid == (8, 8)


def test_grouped_batches_have_every_caption_once_and_little_padding():
    train = loaded().splits["train"]
    texts = tuple((" ".join(["red"] * (1 + number % 7)),) for number in range(len(train)))
    data = CaptionDataset({**loaded().splits, "train": Captions(train.images, texts)})
    task, grouped = prepared(data), prepared(data)
    grouped.options = grouped.options.model_copy(update={"group_by_length": True})

    def padding(task: CaptioningTask) -> int:
        return sum(int((task.batch(rows).target_out < 0).sum()) for rows in task.epoch(0))

    assert sorted(chain.from_iterable(grouped.epoch(0))) == sorted(chain.from_iterable(task.epoch(0)))
    assert padding(grouped) < padding(task)
    assert grouped.epoch(0) == grouped.epoch(0) != grouped.epoch(1)


def test_evaluation_with_a_beam_returns_the_captions_and_bleu_of_every_order():
    task = prepared()
    model = small(task)
    model.tokenizer = task.tokenizer
    data = CaptionDataset({"test": task.valid})
    greedy, beam = (task.evaluate(model, data, "test", GenerationConfig(num_beams=beams)) for beams in (1, 3))
    assert greedy.scores["bleu"] == task.score_examples(model, task.valid)["bleu"]
    assert greedy.scores["loss"] == beam.scores["loss"]
    assert len(beam.outputs) == beam.size == len(task.valid)
    assert {"bleu_1", "bleu_2", "bleu_3"} < beam.scores.keys()

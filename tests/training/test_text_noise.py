"""Noise in the training texts, drawn again in each epoch."""

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.tasks.base.task import train_tokenizer
from qkv.tasks.base.text_noise import TextNoise
from qkv.tasks.translation import TranslationTask, encode
from qkv.training import job
from qkv.training.recipe import read_recipe

from .stopping import stop_after

PAIRS = [Pair(f"Is it number {number}?", f"Ist es Nummer {number}?") for number in range(1000)]


def test_probabilities_of_each_kind_of_noise():
    noisy = TextNoise(lowercase=0.2, unpunctuated=0.5).apply(PAIRS, seed=0, epoch=0)
    lower = [pair.source == pair.source.lower() for pair in noisy]
    bare = [not pair.source.endswith("?") for pair in noisy]
    both = [left and right for left, right in zip(lower, bare, strict=True)]
    assert 150 < sum(lower) < 250
    assert 440 < sum(bare) < 560
    assert 60 < sum(both) < 140  # independent
    for plain, pair in zip(PAIRS, noisy, strict=True):
        assert pair.target in (plain.target, plain.target.removesuffix("?"))  # the target keeps its case
        assert pair.source.endswith("?") == pair.target.endswith("?")
        assert (pair is plain) == (pair == plain)


def test_upper_case():
    noisy = TextNoise(uppercase=0.2, lowercase=0.5).apply(PAIRS, seed=0, epoch=0)
    assert 150 < sum(pair.source.isupper() for pair in noisy) < 250
    assert [pair.target for pair in noisy] == [pair.target for pair in PAIRS]


def test_other_numbers_with_as_many_digits():
    pairs = [
        *PAIRS,
        Pair("It costs 20 dollars.", "Es kostet zwanzig Dollar."),
        Pair("8:30, not 8:15", "8.30, nicht 8.15"),
    ]
    noisy = TextNoise(numbers=0.999999).apply(pairs, seed=0, epoch=0)
    found = [[re.findall(r"\d+", text) for text in (pair.source, pair.target)] for pair in noisy]
    assert all(source == target for source, target in found[:1000])
    assert [len(source[0]) for source, _ in found[:1000]] == [len(str(number)) for number in range(1000)]
    assert [source[0] for source, _ in found[:2]] == ["0", "1"]
    assert sum(int(source[0]) == row for row, (source, _) in enumerate(found[:1000])) < 20
    assert len({source[0] for source, _ in found[100:1000]}) > 500
    assert noisy[1000] == pairs[1000]  # the target has no number in digits
    (hour, half, again, quarter), target = found[1001]
    assert hour == again
    assert target == [hour, half, again, quarter]
    assert {half, quarter}.isdisjoint({"30", "15"})
    assert noisy[1001].target == f"{hour}.{half}, nicht {hour}.{quarter}"


def test_seed_and_epoch_determine_the_noise():
    noise = TextNoise(lowercase=0.5)
    assert noise.apply(PAIRS, 3, 7) == noise.apply(PAIRS, 3, 7)
    assert noise.apply(PAIRS, 3, 7) != noise.apply(PAIRS, 3, 8)
    assert noise.apply(PAIRS, 3, 7) != noise.apply(PAIRS, 4, 7)


def test_phrases_of_the_pairs():
    pairs = [Pair("The red house", "Das rote Haus"), Pair("The red book", "Das rote Buch"), Pair("A house", "Ein Haus")]
    noise = TextNoise(phrases=0.5)
    alignment = noise.align(pairs * 100)
    epochs = [noise.apply(pairs * 100, 0, epoch, alignment) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] == noise.apply(pairs * 100, 0, 0, alignment)
    changed = [pair for pair in epochs[0] if pair not in pairs]
    assert 90 < len(changed) < 160  # some phrases are the whole pair
    texts = {(pair.source, pair.target) for pair in changed}
    assert {("house", "Haus"), ("House", "Haus"), ("red book.", "rote Buch."), ("Red house", "Rote Haus")} <= texts
    assert TextNoise(lowercase=0.5).align(pairs) is None


def test_concatenated_pairs():
    noisy = TextNoise(concatenated=0.5, lowercase=0.5, unpunctuated=0.5).apply(PAIRS, seed=0, epoch=0)
    number = re.compile(r"numb?m?er (\d+)", re.IGNORECASE)
    found = [[number.findall(text) for text in (pair.source, pair.target)] for pair in noisy]
    assert all(source == target for source, target in found)  # the same pairs in the same order
    assert all(row == int(source[0]) for row, (source, _) in enumerate(found))
    joined = [source for source, _ in found if len(source) == 2]
    assert 440 < len(joined) < 560
    assert len({second for _, second in joined}) > 350  # any other pair
    ends = {pair.source.removesuffix("?")[-1] for pair in noisy}
    assert ends <= set("0123456789")  # final punctuation is that of the second sentence


@pytest.mark.parametrize("kind", ["phrases", "concatenated"])
def test_one_target_language_is_needed(kind: str):
    with pytest.raises(InputError, match=kind):
        TextNoise(**{kind: 0.5}).align([Pair("<2fr> A house", "Une maison")])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Go on! ", "Go on"),
        ("What?!", "What"),
        ("Wait…", "Wait"),
        ("No", "No"),
        ("U.S. troops.", "U.S. troops"),
        ("...", "..."),  # nothing would be left
        ('He said "no."', 'He said "no."'),
    ],
)
def test_final_punctuation(source: str, expected: str):
    (pair,) = TextNoise(unpunctuated=0.999999).apply([Pair(source, "Ziel.")], 0, 0)
    assert pair.source == expected
    assert pair.target == ("Ziel." if source == "..." else "Ziel")


def test_training_reads_the_noisy_texts_and_validation_does_not(tiny):
    noisy = tiny.replace(task=tiny.task.replace(text_noise={"lowercase": 0.5}))
    data = noisy.data.load()
    tokenizer = train_tokenizer(data, noisy.data)
    model = noisy.model.replace(**TranslationTask.sizes(data, tokenizer))
    task = TranslationTask(data, tokenizer, model, noisy.task, noisy.train, 0)
    task.epoch(0)
    noisy_pairs = noisy.task.text_noise.apply(task.train.pairs, 0, 0)
    assert task.epoch_pairs == encode(tokenizer, noisy_pairs) != task.train.tokens
    assert task.valid.tokens == encode(tokenizer, task.valid.pairs)


def test_resuming_is_bit_exact(tiny, tmp_path: Path, monkeypatch):
    noisy = tiny.replace(
        task=tiny.task.replace(text_noise={"lowercase": 0.5}),
        train=tiny.train.replace(epochs=2, validate_every=1000),
    )
    whole = job.begin(noisy, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, whole.state.step // 2 + 1)
        assert not job.begin(noisy, tmp_path / "parts", "cpu").state.finished
    parts = job.resume(tmp_path / "parts", "cpu")
    expected, resumed = (load_file(done.run.checkpoints[-1] / "model.safetensors") for done in (whole, parts))
    assert all(expected[key].equal(resumed[key]) for key in expected)


@pytest.mark.parametrize("recipe", ["gum-parse-gru", "chitchat-transformer", "multi30k-transformer model.tree=both"])
def test_noise_does_not_fit_trees_and_dialogues(recipe: str):
    name, *changes = recipe.split()
    with pytest.raises(InputError, match="text_noise"):
        read_recipe(name, ["task.text_noise.lowercase=0.1", *changes])

"""BERT's pre-training as a run: it learns, goes on bit for bit, and what comes of it is used like a released BERT."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.data.pair import Pair
from qkv.data.registry import DATASETS, LoadedData
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.errors import InputError
from qkv.interop import load
from qkv.tasks.classifier import Classifier
from qkv.tasks.filler import Filler
from qkv.training import job
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.run import LOG, Run

SIZES = ["model.dim=32", "model.heads=2", "model.layers=1", "model.dropout=0.0", "model.max_length=32"]
TINY = [
    *SIZES,
    "data.vocabulary=wordpiece:90",
    "train.epochs=3",
    "train.batch_tokens=256",
    "train.length=32",
    "train.warmup=5",
    "train.lr=0.01",
    "train.validate_every=6",
    "train.save_every=3",
    "train.valid_size=12",
]


def review(number: int) -> Pair:
    """Praise or blame throughout, so that words tell of each other."""
    chance = random.Random(number)
    praise = number % 2
    words = ("superb", "great", "lovely") if praise else ("awful", "dull", "sad")
    parts = [f"This {chance.choice(['film', 'plot'])} is {chance.choice(words)}." for _ in range(2 + number % 4)]
    return Pair(" ".join(parts), "positive" if praise else "negative")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The recipe for film reviews, on very short ones."""
    splits = {"train": [review(n) for n in range(80)], "valid": [review(n) for n in range(80, 96)]}
    monkeypatch.setitem(DATASETS, "imdb", replace(DATASETS["imdb"], load=lambda config: LoadedData(splits)))
    return read_recipe("imdb-bert", TINY)


def tensors(folder: Path) -> dict[str, object]:
    newest = Run.open(folder).checkpoints[-1]
    return load_file(newest / "model.safetensors") | load_file(newest / "training.safetensors")


def test_it_learns_and_its_words_are_filled_in_and_its_weights_are_fine_tuned(tiny, tmp_path, capsys):
    run = tmp_path / "bert"
    recipe = replace(tiny, train=replace(tiny.train, epochs=8, validate_every=50, save_every=1000))
    assert job.begin(recipe, run, "cpu").place.finished
    assert "80 documents, 1,400 tokens  vocabulary wordpiece:90 (75)" in capsys.readouterr().err
    records = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    *_, valid = (record for record in records if record["kind"] == "valid")
    assert valid.keys() >= {"loss", "perplexity", "accuracy", "next_sentence"}
    assert valid["perplexity"] < 3  # one who knows how often each word comes, and no more, is at 8.2
    assert records[0]["loss"] > 4

    filled = Filler(run)("This film is superb. This [MASK] is great.")
    assert filled.guesses[0][0].word in ("film", "plot")

    changes = ["task=classify", "data.name=imdb", "data.vocabulary=bpe:50", "model.max_length=24", f'init="{run}"']
    training = ["train.epochs=16", "train.batch_tokens=256", "train.lr=3e-3", "train.warmup=5"]
    wanted = read_recipe("ewt-bert", [*changes, *training])
    assert job.begin(wanted, tmp_path / "tuned", "cpu").place.finished
    said = capsys.readouterr().err
    assert "new are label.weight, label.bias" in said
    assert "note: data.vocabulary set aside: init brings a tokenizer of its own" in said
    classifier = Classifier(tmp_path / "tuned")
    assert classifier("This plot is superb.").label == "positive"
    assert classifier("This plot is awful.").label == "negative"
    tokenizer = load(tmp_path / "tuned").tokenizer
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert tokenizer.to_json() == load(run).tokenizer.to_json()


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_an_interrupted_run_ends_bit_for_bit_like_one_that_was_not(head, tiny, tmp_path, monkeypatch):
    recipe = replace(tiny, model=tiny.model | {"head": head, "dropout": 0.1})
    whole = job.begin(recipe, tmp_path / "whole", "cpu")
    batches = whole.place.step // recipe.train.epochs
    assert batches >= 3
    for steps in (2, batches):  # within the first epoch, then within the second
        asked = iter([False] * (steps - 1) + [True] * 1000)
        with monkeypatch.context() as patch:
            patch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self, asked=asked: next(asked))
            going_on = (tmp_path / "parts").exists()
            part = job.resume(tmp_path / "parts", "cpu") if going_on else job.begin(recipe, tmp_path / "parts", "cpu")
            assert not part.place.finished
    assert job.resume(tmp_path / "parts", "cpu").place.finished
    one, other = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("imdb-bert", ["data.vocabulary=bpe:100"], "data.vocabulary 'bpe:100' is not for masked words; use wordpiece"),
        ("imdb-bert", ["model.head=tagger"], "model.head 'tagger' says no words: set it to masked_lm or pretraining"),
        ("imdb-bert", ["model.name=gpt2"], "model.name 'gpt2' cannot learn masked words; use bert"),
        ("imdb-bert", ["data.name=wnut17"], "data.name 'wnut17' is not text or labelled, from which masked words is"),
        ("multi30k-transformer", ["data.vocabulary=wordpiece:99"], "'wordpiece:99' is not for translation; use char"),
        ("multi30k-transformer", ["data.target_vocabulary=wordpiece:99"], "'wordpiece:99' is not for translation"),
        ("shakespeare-gpt", ["data.vocabulary=wordpiece:99"], "'wordpiece:99' is not for language modelling; use char"),
    ],
)  # fmt: skip
def test_what_a_vocabulary_or_a_head_is_not_for_is_told_before_there_are_data(name, changes, words):
    with pytest.raises(InputError) as caught:
        read_recipe(name, changes)
    assert words in str(caught.value)


def test_word_pieces_are_for_taggers_and_classifiers_too():
    assert read_recipe("ewt-bert", ["data.vocabulary=wordpiece:99"]).data.vocabulary == "wordpiece:99"

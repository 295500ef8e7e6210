"""BERT pretraining: it learns, resumes bit for bit, and can be used like a released BERT."""

import json
import random

import pytest

from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.hub import load
from qkv.pipelines.classifier import Classifier
from qkv.pipelines.mask_filler import MaskFiller
from qkv.registry import lookup
from qkv.tokenizers.library import PretrainedTokenizer
from qkv.training import job
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.run import LOG

from .stopping import assert_bit_equal, stop_after

SIZES = ["model.dim=32", "model.heads=2", "model.layers=1", "model.dropout=0.0", "model.max_length=32"]
TINY = [
    *SIZES,
    "data.tokenizer={ name = 'wordpiece', vocab_size = 90 }",
    "train.epochs=3",
    "train.batch_size=256",
    "task.length=32",
    "train.warmup=5",
    "train.lr=0.01",
    "train.validate_every=6",
    "train.save_every=3",
    "train.valid_size=12",
]


def review(number: int) -> Pair:
    """Return a review of one sentiment throughout, so that its words predict each other."""
    rng = random.Random(number)
    praise = number % 2
    words = ("superb", "great", "lovely") if praise else ("awful", "dull", "sad")
    parts = [f"This {rng.choice(['film', 'plot'])} is {rng.choice(words)}." for _ in range(2 + number % 4)]
    return Pair(" ".join(parts), "positive" if praise else "negative")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The imdb-bert recipe on very short reviews."""
    splits = {"train": [review(n) for n in range(80)], "valid": [review(n) for n in range(80, 96)]}
    monkeypatch.setattr(lookup("dataset", "imdb"), "read", lambda _: LabeledTextDataset(splits))
    return read_recipe("imdb-bert", TINY)


def test_a_pretrained_bert_fills_masks_and_can_be_fine_tuned(tiny, tmp_path, capsys):
    run = tmp_path / "bert"
    recipe = tiny.replace(train=tiny.train.replace(epochs=8, validate_every=50, save_every=1000))
    assert job.begin(recipe, run, "cpu").state.finished
    assert "80 documents, 1,400 tokens  tokenizer wordpiece (75)" in capsys.readouterr().err
    records = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    *_, valid = (record for record in records if record["kind"] == "valid")
    assert valid.keys() >= {"loss", "perplexity", "accuracy", "next_sentence"}
    assert valid["perplexity"] < 3  # unigram perplexity is 8.2
    assert records[0]["loss"] > 4

    filled = MaskFiller(run)("This film is superb. This [MASK] is great.")
    assert filled.guesses[0][0].word in ("film", "plot")

    changes = ["task=classify", "data.name=imdb", "data.tokenizer=bpe", "model.max_length=24", f'init="{run}"']
    training = ["train.epochs=16", "train.batch_size=256", "train.lr=3e-3", "train.warmup=5"]
    finetuning = read_recipe("ewt-bert", [*changes, *training])
    assert job.begin(finetuning, tmp_path / "tuned", "cpu").state.finished
    stderr = capsys.readouterr().err
    assert "randomly initialized: label.weight, label.bias" in stderr
    assert "note: data.tokenizer ignored" in stderr
    classifier = Classifier(tmp_path / "tuned")
    assert classifier("This plot is superb.").label == "positive"
    assert classifier("This plot is awful.").label == "negative"
    tokenizer = load(tmp_path / "tuned").tokenizer
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert tokenizer.to_json() == load(run).tokenizer.to_json()


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_resuming_is_bit_exact(head, tiny, tmp_path, monkeypatch):
    recipe = tiny.replace(model=tiny.model.replace(head=head, dropout=0.1))
    whole = job.begin(recipe, tmp_path / "whole", "cpu")
    batches = whole.state.step // recipe.train.epochs
    assert batches >= 3
    for steps in (2, batches):  # within the first epoch, then within the second
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            resuming = (tmp_path / "parts").exists()
            part = job.resume(tmp_path / "parts", "cpu") if resuming else job.begin(recipe, tmp_path / "parts", "cpu")
            assert not part.state.finished
    assert job.resume(tmp_path / "parts", "cpu").state.finished
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("imdb-bert", ["data.tokenizer=bpe"], "data.tokenizer 'bpe'"),
        ("imdb-bert", ["model.head=tagger"], "model.head 'tagger'"),
        ("imdb-bert", ["model.name=gpt2"], "model.name 'gpt2'"),
        ("imdb-bert", ["data.name=wnut17"], "data.name 'wnut17'"),
        ("multi30k-transformer", ["data.tokenizer=wordpiece"], "data.tokenizer 'wordpiece'"),
        ("multi30k-transformer", ["data.target_tokenizer=wordpiece"], "'wordpiece'"),
        ("shakespeare-gpt", ["data.tokenizer=wordpiece"], "data.tokenizer 'wordpiece'"),
    ],
)  # fmt: skip
def test_an_unsuitable_vocabulary_head_or_model_is_rejected(name, changes, words):
    with pytest.raises(InputError) as caught:
        read_recipe(name, changes)
    assert words in str(caught.value)


def test_taggers_accept_wordpiece_vocabularies():
    assert read_recipe("ewt-bert", ["data.tokenizer=wordpiece"]).data.tokenizer.name == "wordpiece"

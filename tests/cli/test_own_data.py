"""`qkv train --data` and `qkv evaluate --data`: the task determines the file format."""

import json
import re

import pytest

from qkv.datasets.examples.tagged import Tagged
from qkv.pipelines.translator import Translator

SQUAD = {
    "context": "Ada lives in Rome, Bo at home.",
    "qas": [{"question": "Where is Ada?", "answers": [{"text": "in Rome", "answer_start": 10}]}],
}
FILES = {
    "pairs-transformer": ("a b\tc d\nc d\ta b\ne\tf\n", "encoder_layers"),
    "summaries-transformer": ("a long text\ttext\na short one\tone\nno more\tno\n", "encoder_layers"),
    "polarity-bert": ("a good film\tgood\na bad film\tbad\nso bad\tbad\nso good\tgood\n", "layers"),
    "ewt-bert-scratch": ("She\tPRON\nreads\tVERB\n\nDogs\tNOUN\n\nHe\tPRON\n", "layers"),
    "questions-bert": (
        json.dumps({"data": [{"paragraphs": [SQUAD, {**SQUAD, "context": f"{SQUAD['context']} So they say."}]}]}),
        "layers",
    ),
    "shakespeare-gpt": ("to be or not to be, that is the question\n" * 20, "layers"),
}
SCORED = {
    "pairs-transformer": ("size", 3),
    "summaries-transformer": ("size", 3),
    "polarity-bert": ("size", 4),
    "ewt-bert-scratch": ("size", 3),
    "questions-bert": ("size", 2),
}
SMALL = ("model.dim=8", "model.heads=2", "train.epochs=1", "train.batch_size=64")


def settings(*more: str) -> list[str]:
    return [word for setting in (*SMALL, *more) for word in ("--set", setting)]


@pytest.mark.parametrize("recipe", FILES)
def test_a_recipe_trains_and_is_evaluated_on_user_files(qkv, tmp_path, recipe):
    text, layers = FILES[recipe]
    small = [f"model.{layers}=1"]
    if recipe in ("polarity-bert", "questions-bert"):
        small.append('data.tokenizer={name="wordpiece",vocab_size=60}')
    if recipe == "shakespeare-gpt":
        small += ["task.length=16", "model.max_length=16"]
    if recipe == "summaries-transformer":
        small += ["model.decoder_layers=1", "model.max_length=16"]
    mine = tmp_path / ("mine.tsv" if "\t" in text else "mine.txt")
    mine.write_text(text)
    name = recipe
    if recipe == "questions-bert":  # fine-tunes a pretrained model
        name = tmp_path / "scratch.toml"
        name.write_text('extends = "questions-bert"\nrequires_init = false\n')
    done = qkv("train", name, "--data", mine, "--output", tmp_path / "run", *settings(*small))
    assert done.code == 0, done.err
    evaluated = qkv("evaluate", tmp_path / "run", "--split", "valid", "--no-record")
    assert (evaluated.code, "no test split" in evaluated.err) == (0, False)
    assert "no test split" in qkv("evaluate", tmp_path / "run", "--no-record", "--json").err
    other = mine.rename(tmp_path / f"other{mine.suffix}")  # the training file is no longer needed
    done = qkv("evaluate", tmp_path / "run", "--data", other, "--json")
    if recipe in SCORED:
        report, (key, size) = json.loads(done.out), SCORED[recipe]
        assert (report["split"], report[key]) == (str(other), size)
        assert not (tmp_path / "run/results.jsonl").exists()
    else:
        assert "--data" in done.error


def test_labels_without_training_examples_are_noted(qkv, tmp_path):
    text, _ = FILES["polarity-bert"]
    for name, labels in (("mine", text), ("test", "a film\tmeh\nso good\tgood\n")):
        (tmp_path / f"{name}.tsv").write_text(labels)
    mine, test, run = tmp_path / "mine.tsv", tmp_path / "test.tsv", tmp_path / "run"
    small = settings("model.layers=1", 'data.tokenizer={name="wordpiece",vocab_size=60}')
    trained = qkv("train", "polarity-bert", "--data", mine, "--test", test, "--output", run, *small)
    assert re.search("note: .*test.*meh", trained.err)
    assert re.search("note: .*test.*meh", qkv("evaluate", run).err)
    assert re.search(f"note: .*{test}.*meh", qkv("evaluate", run, "--data", test).err)


@pytest.mark.parametrize("recipe", ["polarity-lstm-mean", "ewt-lstm"])
def test_the_labels_of_own_data_must_be_those_of_the_model(qkv, tmp_path, recipe):
    tags = recipe == "ewt-lstm"
    text = FILES["ewt-bert-scratch" if tags else "polarity-bert"][0]
    suffix = "conll" if tags else "tsv"
    mine, other, run = tmp_path / f"mine.{suffix}", tmp_path / f"other.{suffix}", tmp_path / "run"
    mine.write_text(text)
    other.write_text("a\tneg\nb\tpos\n")
    small = [word for setting in ("hidden_dim", "embedding_dim") for word in ("--set", f"model.{setting}=4")]
    trained = qkv("train", recipe, "--data", mine, "--output", run, *small, "--set", "train.epochs=1")
    assert trained.code == 0, trained.err
    done = qkv("evaluate", run, "--data", other)
    assert done.code == 2
    assert f"'neg', 'pos' of {other} are not" in done.error
    assert ("'VERB'" if tags else "'good'") in done.error
    note = "trained on this data"
    same = qkv("evaluate", run, "--data", mine)
    assert (same.code, note in same.err) == (0, True)
    renamed = mine.rename(tmp_path / f"renamed.{suffix}")
    assert note not in qkv("evaluate", run, "--data", renamed).err


def test_a_tagger_with_tree_positions_requires_heads(qkv, tmp_path):
    rows = [("They", 3), ("are", 3), ("late", 0)]
    sentence = "".join(f"{n}\t{word}\t_\tX\t_\t_\t{head}\tdep\t_\t_\n" for n, (word, head) in enumerate(rows, 1))
    trees, bare, run = tmp_path / "trees.conllu", tmp_path / "bare.tsv", tmp_path / "run"
    trees.write_text(f"# text = They are late\n{sentence}\n{sentence.replace('late', 'here')}")
    bare.write_text("They\tdep\n")
    train = ("train", "ewt-bert-tree", "--data", trees, "--output", run, *settings("model.layers=1"))
    assert re.search("test: .*head", qkv(*train, "--test", bare).error)
    assert qkv(*train).code == 0
    assert re.search(f"{bare}: .*head", qkv("evaluate", run, "--data", bare).error)
    assert "head" in qkv("tag", run, "They are late").error
    assert qkv("tag", run, "--input", trees).out == "They/X are/X late/X\nThey/X are/X here/X\n"


def test_a_translator_with_tree_positions_requires_heads(qkv, tmp_path):
    sentences = [[("They", 3), ("are", 3), ("late", 0)], [("They", 2), ("sit", 0)], [("Late", 0)]]
    rows = [
        "".join(f"{n}\t{word}\t_\tX\t_\t_\t{head}\tdep\t_\t_\n" for n, (word, head) in enumerate(words, 1))
        for words in sentences
    ]
    trees, plain, targets, run = (tmp_path / name for name in ("trees.conllu", "plain.txt", "targets.txt", "run"))
    trees.write_text("\n".join(rows))
    plain.write_text("They are late\nThey sit\nLate\n")
    targets.write_text("late late -\nsit -\n-\n")
    small = settings("model.encoder_layers=1", "model.decoder_layers=1", "model.tree=both")
    train = ("train", "pairs-transformer", "--output", run, *small)
    assert re.search("train: pair 1 .*head", qkv(*train, "--data", plain, "--data", targets).error)
    done = qkv(*train, "--data", trees, "--data", targets)
    assert done.code == 0, done.err
    assert qkv("evaluate", run, "--no-record").code == 0
    scored = qkv("evaluate", run, "--data", trees, "--data", targets, "--json")
    assert json.loads(scored.out)["size"] == 3
    sources = [
        Tagged(tuple(word for word, _ in sentence), ("",) * len(sentence), tuple(head for _, head in sentence))
        for sentence in sentences
    ]
    expected = Translator(run, device="cpu")(sources, num_beams=2, max_new_tokens=9)
    translate = ("translate", run, "--num-beams", 2, "--max-new-tokens", 9, "--device", "cpu")
    outputs = [json.loads(line) for line in qkv(*translate, "--input", trees, "--json").out.splitlines()]
    assert [output["text"] for output in outputs] == [answer.text for answer in expected]
    assert [output["source"] for output in outputs] == plain.read_text().splitlines()
    assert re.search("input 1 .*head", qkv(*translate, "--input", plain).error)
    assert qkv("view", run, "--device", "cpu", "--page", tmp_path / "page.html").code == 0


def test_a_task_without_user_files_is_an_error(qkv, tmp_path):
    (tmp_path / "mine.txt").write_text("a")
    done = qkv("train", "copy-ntm", "--data", tmp_path / "mine.txt")
    assert "--data" in done.error

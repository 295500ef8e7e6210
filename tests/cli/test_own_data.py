"""`qkv train --data`: the recipe's task says what a user's own files hold."""

import pytest

FILES = {
    "pairs-transformer": ("a b\tc d\nc d\ta b\ne\tf\n", "encoder_layers"),
    "polarity-bert": ("a good film\tgood\na bad film\tbad\nso bad\tbad\nso good\tgood\n", "layers"),
    "ewt-bert": ("She\tPRON\nreads\tVERB\n\nDogs\tNOUN\n\nHe\tPRON\n", "layers"),
    "shakespeare-gpt": ("to be or not to be, that is the question\n" * 20, "layers"),
}


@pytest.mark.parametrize("recipe", FILES)
def test_a_recipe_trains_on_files_of_the_kind_that_its_task_learns_from(qkv, tmp_path, recipe):
    text, layers = FILES[recipe]
    small = ["model.dim=8", "model.heads=2", f"model.{layers}=1", "train.epochs=1", "train.batch_tokens=64"]
    if recipe == "polarity-bert":
        small.append("data.vocabulary=wordpiece:60")
    if recipe == "shakespeare-gpt":
        small += ["train.length=16", "model.max_length=16"]
    mine = tmp_path / ("mine.tsv" if "\t" in text else "mine.txt")
    mine.write_text(text)
    settings = [part for one in small for part in ("--set", one)]
    done = qkv("train", recipe, "--data", mine, "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    assert qkv("evaluate", tmp_path / "run", "--split", "valid").code == 0


def test_a_task_without_a_format_for_own_files_says_so(qkv, tmp_path):
    (tmp_path / "mine.txt").write_text("a")
    done = qkv("train", "fashion-vit", "--data", tmp_path / "mine.txt")
    assert "telling pictures apart is learned from a data set that qkv knows" in done.error

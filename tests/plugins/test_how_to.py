"""The plug-ins of docs/how-to: each is trained and evaluated by commands, and its page shows the file."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Ended

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = {
    "add-a-score.md": "gaussian_score.py",
    "add-an-alignment.md": "top_k_align.py",
    "add-a-position.md": "log_distance_position.py",
    "add-a-model.md": "nplm_model.py",
    "add-a-task.md": "regression_task.py",
    "add-a-dataset.md": "additions_dataset.py",
    "add-a-claim.md": "temperature_claim.py",
}
MAX_LINES = 40

Command = Callable[..., Ended]
Train = Callable[..., dict[str, float]]
GRU = ("model.hidden_dim=8", "model.embedding_dim=4", "train.batch_size=512", "train.valid_size=8")


def settings(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


@pytest.fixture
def train(qkv: Command, forget_plugins: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train and evaluate with a plug-in, check that the run does not open without it, and return the scores."""
    monkeypatch.chdir(tmp_path)

    def call(plugin: str, missing: str, recipe: str, *arguments: str, limit: int | None = None) -> dict[str, float]:
        option, evaluation = ("--plugin", HOW_TO / plugin), () if limit is None else ("--limit", limit)
        trained = qkv("train", recipe, *option, *arguments, "--output", "run", "--device", "cpu")
        assert trained.code == 0, trained.err
        evaluated = qkv("evaluate", "run", *option, *evaluation, "--json")
        assert evaluated.code == 0, evaluated.err
        forget_plugins()
        for command in (("evaluate", "run"), ("train", "--resume", "run"), ("train", recipe, *arguments)):
            error = qkv(*command).error
            assert f"unknown {missing}" in error
            assert "--plugin FILE" in error
        return json.loads(evaluated.out)

    return call


def recipe_of(page: str) -> str:
    """Write the recipe of a page to a file and return its path."""
    (recipe,) = re.findall(r"```toml\n(.*?)```", (HOW_TO / page).read_text(encoding="utf-8"), re.DOTALL)
    Path("mine.toml").write_text(recipe, encoding="utf-8")
    return "mine.toml"


@pytest.mark.parametrize(("page", "plugin"), PAGES.items())
def test_a_page_shows_its_plugin_which_is_short(page: str, plugin: str) -> None:
    code = (HOW_TO / plugin).read_text(encoding="utf-8")
    assert len(code.splitlines()) <= MAX_LINES
    text = (HOW_TO / page).read_text(encoding="utf-8")
    assert f"```python\n# {plugin}\n{code}```" in text
    assert f"--plugin {plugin}" in text


def test_every_file_has_a_page() -> None:
    assert {path.name for path in HOW_TO.glob("*.py")} == set(PAGES.values())


def test_a_score(train: Train) -> None:
    changes = settings("model.score.name=gaussian", "data.size=60", "train.epochs=1", *GRU)
    assert "exact" in train("gaussian_score.py", "score 'gaussian'", "dates-gru", *changes, limit=100)


def test_an_alignment(train: Train) -> None:
    changes = settings("model.align.name=top_k", "model.align.k=2", "data.size=60", "train.epochs=1", *GRU)
    assert "exact" in train("top_k_align.py", "align 'top_k'", "dates-gru", *changes, limit=100)


def test_a_position(train: Train) -> None:
    sizes = ("model.dim=16", "model.ffn_dim=16", "train.epochs=1", "train.valid_size=8")
    changes = settings("model.position.name=log_distance", "model.position.buckets=6", "data.size=60", *sizes)
    scores = train("log_distance_position.py", "position 'log_distance'", "dates-transformer", *changes, limit=100)
    assert "exact" in scores


def test_a_model(train: Train, qkv: Command, tmp_path: Path) -> None:
    text = "the king is dead, long live the king. " * 200
    (tmp_path / "text.txt").write_text(text)
    changes = settings("train.epochs=30", "train.batch_size=512", "train.warmup=5", "train.lr=0.01", "task.length=16")
    scores = train("nplm_model.py", "model 'nplm'", recipe_of("add-a-model.md"), "--data", "text.txt", *changes)
    assert scores["perplexity"] < 2
    option = ("--plugin", HOW_TO / "nplm_model.py")
    assert "long live" in qkv("generate", "run", "the king is dead,", *option, "--top-k", "1").out
    assert "NPLM" in qkv("models", *option).out
    assert "tokens that predict the next one" in qkv("models", "show", "nplm", *option).out


def test_a_task(train: Train, tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [rng.choices(["great", "fine", "dull", "poor"], k=5) for _ in range(120)]
    lines = [f"{' '.join(words)}\t{sum(word in ('great', 'fine') for word in words)}\n" for words in texts]
    (tmp_path / "ratings.tsv").write_text("".join(lines))
    changes = settings("model.hidden_dim=8", "train.epochs=30", "train.warmup=5", "train.lr=0.02")
    recipe = recipe_of("add-a-task.md")
    scores = train("regression_task.py", "task 'regression'", recipe, "--data", "ratings.tsv", *changes)
    assert scores["absolute error"] < 0.5


def test_a_dataset(train: Train, qkv: Command) -> None:
    changes = settings("data.name=additions", "data.size=60", "train.epochs=1", *GRU)
    assert "exact" in train("additions_dataset.py", "dataset 'additions'", "pairs-gru", *changes, limit=100)
    shown = qkv("data", "show", "additions", "--plugin", HOW_TO / "additions_dataset.py", "--count", 3).out
    problems = [line.split("\t") for line in shown.splitlines()]
    assert [sum(map(int, problem.split("+"))) for problem, _ in problems] == [int(answer) for _, answer in problems]


def test_a_claim(qkv: Command, forget_plugins: Callable[[], None], tmp_path: Path) -> None:
    option = ("--plugin", HOW_TO / "temperature_claim.py", "--output", tmp_path)
    ended = qkv("claims", "run", "temperature-entropy", "--device", "cpu", "--json", *option)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["verdict"] == "supported"
    assert "supported" in qkv("claims", "show", "101", *option).out
    forget_plugins()
    assert "--plugin FILE" in qkv("claims", "run", "temperature-entropy").error

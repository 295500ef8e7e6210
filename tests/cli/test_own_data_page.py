"""docs/how-to/your-own-data.md: its files are written, its code and all its commands run, in order."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.datasets.user_files import FORMATS_PAGE
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

from .command import Ended

PAGE = Path(__file__).parents[2] / "docs" / f"{FORMATS_PAGE}.md"
SMALL = {  # the settings that make a recipe small
    "polarity-bert": ("model.dim=16", "model.heads=2", "model.layers=1"),
    "pairs-gru": ("model.hidden_dim=16", "model.embedding_dim=8"),
    "ewt-lstm": ("model.hidden_dim=8", "model.embedding_dim=8"),
    "shakespeare-gpt": ("model.dim=16", "model.heads=2", "model.layers=1", "model.max_length=128", "task.length=128"),
    "images-vit": ("model.stem=[]", "model.dim=16", "model.heads=2", "model.layers=1"),
    "captions-attend": ("model.hidden_dim=16", "model.encoder.filters=[4,8,8]", "model.feature_dim=8"),
    "speech-las": ("model.hidden_dim=8", "model.embedding_dim=8", "model.encoder.dim=8"),
    "chitchat-gru": ("model.hidden_dim=16", "model.embedding_dim=8", "model.tie_embeddings=false"),
    "babi-memory": ("model.dim=8",),
    "gum-parse-gru": ("model.hidden_dim=16", "model.embedding_dim=8"),
}


def blocks() -> list[tuple[str, str, str]]:
    """Language, title and content of each block."""
    pattern = r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$'
    return re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_of_the_page_runs(
    qkv: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kinds = set()
    names: dict[str, object] = {}
    saved(tiny_bert(None), tiny_tokenizer(tmp_path), tmp_path / "FOLDER")  # of --set init=FOLDER
    for language, title, content in blocks():
        kinds.add(language)
        if title:
            (tmp_path / title).write_text(content, encoding="utf-8")
        elif language == "python":
            exec(compile(content, str(PAGE), "exec"), names)
        else:
            assert language == "sh"
            for line in content.splitlines():
                _, *words = shlex.split(line)
                small = [word for key in SMALL.get(words[1], ()) for word in ("--set", key)]
                epochs = ["--set", "train.epochs=1", "--device", "cpu"] if words[0] == "train" else []
                ended = qkv(*words, *small, *epochs)
                assert ended.code == 0, (line, ended.err)
    assert kinds == {"csv", "json", "text", "python", "sh"}
    assert qkv("data", "check", names["folder"], "--json").code == 0


def test_commands_of_the_text_name_existing_recipes() -> None:
    from qkv.training.recipe import recipe_names

    named = set(re.findall(r"qkv train ([a-z-]+)", PAGE.read_text(encoding="utf-8")))
    assert named <= set(recipe_names())

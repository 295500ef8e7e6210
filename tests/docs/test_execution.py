"""The commands and Python code of the documentation run, page by page, in the order of the page.

Trainings are reduced to a few examples (`reduced.py`). What is not run is in NOT_RUN, with the reason; its command line
is checked in test_command_lines.py. Most pages take a while and are behind the marker `slow`.
"""

import os
import re
import stat
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.blocks import DOCS, ROOT, blocks, pages

QUICK = ("docs/attention.md",)
# Elsewhere: README.md in test_readme.py, the plug-ins of docs/how-to/add-*.md in tests/plugins/test_how_to.py.
OWN_TESTS = ("README.md", "docs/how-to/add-")
NOT_RUN = {
    r"^(pip|npm|tar|git|make)\b|pip download": "installs or downloads",
    r"torchrun|^ray |--ray\b|sbatch|two-nodes": "needs several processes or machines: tests/training/test_launch.py",
    r"benchmarks": "a benchmark, minutes to hours",
    r"\b(RUN|MODEL|SMALL|FOLDER)\b|\$MODEL|\.\.\.": "names no particular model or folder",
    r"tensorboard --logdir|mlflow|MLFLOW|wandb|:5000": "starts or needs a service",
    r"flickr8k|Flickr8k|photograph|coco": "needs a dataset that cannot be downloaded automatically",
    r"omniglot|fashion|imdb": "needs a large dataset that is not in the folder of the others",
    r"\bclaims run\b": "minutes each: `qkv claims run --all`",
    r"squadshifts-minilm|ewt-bert\b|questions-bert": "fine-tunes a released model: tests/tasks/test_released.py",
    r"--resume\b": "continues a job that was interrupted: tests/cli/test_bulk.py, tests/cli/test_train.py",
    r"qkv serve\b": "runs until it is stopped: tests/serve",
    r"qkv compare runs/": "needs evaluations of whole splits: tests/cli/test_compare.py",
    r"--wav\b": "a model that has hardly been trained writes no tune: tests/pipelines/test_synthesizer.py",
    r"parts/|texts/|mine\.tsv|source\.conllu": "names files of yours",
}  # fmt: skip
NOT_RUN_PYTHON = {r"\b(Sweep\(|vary=)": "trains without reduction: tests/experiments/test_sweep.py"}
NOT_RUN_PAGES = {
    "docs/decisions.md": "prose",
    "docs/how-to/serve.md": "needs a running server: tests/serve",
    "docs/how-to/your-own-data.md": "executed by tests/cli/test_own_data_page.py",
    "docs/how-to/tell-a-story.md": "needs an npm package",
    "docs/how-to/caption-photographs.md": "needs photographs and a released image encoder",
    "docs/distributed.md": "needs several processes: tests/training/test_launch.py",
    "docs/how-to/parse.md": "executed by tests/cli/test_parse.py",
    "docs/how-to/chat.md": "executed by tests/cli/test_chat.py",
    "docs/how-to/transcribe.md": "executed by tests/cli/test_transcribe.py",
    "docs/how-to/answer-about-stories.md": "executed by tests/cli/test_story_commands.py",
}


def reason_not_run(line: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


def executed_pages() -> list[object]:
    found = []
    for page in pages():
        if page.startswith((*OWN_TESTS, "docs/claims/", "docs/lectures/")) or page in NOT_RUN_PAGES:
            continue
        if any(block.language == "python" or block.lines() for block in blocks(page)):
            found.append(pytest.param(page, marks=[] if page in QUICK else [pytest.mark.slow, pytest.mark.corpus]))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages name, in which `qkv` is the reduced command."""
    rng = np.random.default_rng(0)
    for name in ("picture.png", "scene.png"):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / name)
    for name in ("call.wav", "recording.wav"):
        with wave.open(str(tmp_path / name), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
            file.writeframes(rng.integers(-1000, 1000, 8000, dtype=np.int16).tobytes())
    (tmp_path / "dates.txt").write_text("5 March 2026\n6 March 2026\n")
    (tmp_path / "chats.txt").write_text("Amanda: I baked cookies. | Jerry: Sure!\n")
    (tmp_path / "review.txt").write_text("A fine film. The end is weak.\n")
    (tmp_path / "book.txt").write_text("To be or not to be. " * 5000)
    for plugin in (DOCS / "how-to").glob("*.py"):
        (tmp_path / plugin.name).write_text(plugin.read_text(encoding="utf-8"))
    command = tmp_path / "bin" / "qkv"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.docs.reduced "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(text: str, where: str, names: dict[str, object], folder: Path) -> None:
    """Run a block of Python code; a block that begins with the name of a file is that file."""
    if file := re.match(r"# (\w+\.py)\n", text):
        (folder / file[1]).write_text(text, encoding="utf-8")
        return
    session = [line[4:] for line in text.splitlines() if line.startswith((">>> ", "... "))]
    exec(compile("\n".join(session) or text, where, "exec"), names)


@pytest.mark.parametrize("page", executed_pages())
def test_page_runs(page: str, folder: Path) -> None:
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.language == "python" and not any(re.search(pattern, block.text) for pattern in NOT_RUN_PYTHON):
            run_python(block.text, str(block), names, folder)
        for line in block.lines():
            if reason_not_run(line) is None:
                done = subprocess.run(
                    ["sh", "-c", line], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
                )
                assert done.returncode == 0, f"{block}: {line}\n{done.stderr[-2000:]}"


def test_reasons_and_pages_are_still_needed() -> None:
    lines = [line for page in pages() for block in blocks(page) for line in block.lines()]
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in lines)]
    assert unused == []
    assert set(NOT_RUN_PAGES) | set(QUICK) <= set(pages())

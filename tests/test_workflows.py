"""Paths in the workflows and the Dockerfile are those of the repository."""

import re
from pathlib import Path

import pytest

from qkv.serve.settings import KEYS_VARIABLE, read_api_keys

ROOT = Path(__file__).parent.parent


def test_the_published_folder_is_the_one_that_the_documentation_is_built_in():
    (site,) = re.findall(r"^site_dir: (\S+)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    (published,) = re.findall(r"^ +path: (\S+)$", (ROOT / ".github/workflows/docs.yml").read_text(), flags=re.MULTILINE)
    assert published.rstrip("/") == site


def test_the_image_copies_files_that_exist_and_are_not_ignored():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text().split()
    names = [name for line in copied for name in line.split()]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(names)
    for name in names:
        assert (ROOT / name).exists()
        assert name not in ignored or f"!{name}" in ignored


def test_the_paths_that_start_a_workflow_exist():
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        for paths in re.findall(r"^ +paths: \[(.+)\]$", workflow.read_text(), flags=re.MULTILINE):
            for path in re.findall(r'"([^"]+)"', paths):
                assert (ROOT / path.removesuffix("/**")).exists(), f"{workflow.name}: {path}"


def test_the_server_takes_the_key_of_the_docker_workflow(monkeypatch: pytest.MonkeyPatch):
    workflow = (ROOT / ".github/workflows/docker.yml").read_text()
    (key,) = re.findall(rf"{KEYS_VARIABLE}=(\S+)", workflow)
    monkeypatch.setenv(KEYS_VARIABLE, key)
    assert read_api_keys(None) == (key,)
    assert f"Bearer {key}" in workflow

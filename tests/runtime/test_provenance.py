"""Commit, source hash and device name."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from qkv.runtime.provenance import commit, device_name, recorded_device, source_hash

HEAD = "1" * 40


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "src" / "qkv"
    folder.mkdir(parents=True)
    (tmp_path / "checkout" / "pyproject.toml").write_text("")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_of_a_checkout_and_of_a_linked_work_tree(package: Path, tmp_path: Path, monkeypatch) -> None:
    checkout = package.parent.parent
    git(checkout, "init", "-q")
    assert commit(package) == ""  # no commit yet
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "one")
    head = git(checkout, "rev-parse", "HEAD")
    git(checkout, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    (tmp_path / "linked" / "src" / "qkv").mkdir(parents=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert commit(package) == commit(tmp_path / "linked" / "src" / "qkv") == head


@pytest.mark.parametrize("head", ["ref: refs/heads/unborn\n", "nonsense\n", ""])
def test_an_invalid_head_gives_no_commit(package: Path, head: str) -> None:
    write(package.parent.parent / ".git/HEAD", head)
    assert commit(package) == ""


def test_without_git_there_is_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(package.parent.parent / ".git/HEAD", HEAD)
    monkeypatch.setenv("PATH", "")
    assert commit(package) == ""


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "site-packages" / "qkv"
    package.mkdir(parents=True)
    write(tmp_path / ".git/HEAD", HEAD)  # of a repository that merely lies around it
    assert commit(package) == ""
    write(tmp_path / "lib/.git/HEAD", HEAD)
    assert commit(package) == ""


def test_source_hash_depends_on_the_source_files_only(package: Path) -> None:
    write(package / "a.py", "x = 1\n")
    before = source_hash(package)
    write(package / "notes.txt", "x")
    assert source_hash(package) == before
    write(package / "deep" / "b.py", "")
    with_another = source_hash(package)
    write(package / "a.py", "x = 2\n")
    assert len({before, with_another, source_hash(package)}) == 3


def test_device_name_of_a_cpu() -> None:
    threads = torch.get_num_threads()
    try:
        for count, words in ((1, "1 thread"), (2, "2 threads")):
            torch.set_num_threads(count)
            assert device_name(torch.device("cpu")).endswith(f", {words}")
    finally:
        torch.set_num_threads(threads)
    assert recorded_device("CPU, 1 threads and then CPU, 11 threads") == "CPU, 1 thread and then CPU, 11 threads"

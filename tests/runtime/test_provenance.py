"""Commit, source hash and device name."""

from pathlib import Path

import pytest
import torch

from qkv.runtime.provenance import commit, device_name, source_hash

ONE, OTHER = "1" * 40, "2" * 40


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "src" / "qkv"
    folder.mkdir(parents=True)
    (tmp_path / "checkout" / "pyproject.toml").write_text("")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_commit_of_a_branch(package: Path) -> None:
    git = package.parent.parent / ".git"
    write(git / "HEAD", "ref: refs/heads/main\n")
    write(git / "refs/heads/main", f"{ONE}\n")
    assert commit(package) == ONE


def test_commit_of_a_packed_branch_and_of_a_detached_head(package: Path) -> None:
    git = package.parent.parent / ".git"
    write(git / "HEAD", "ref: refs/heads/main\n")
    write(git / "packed-refs", f"# pack-refs\n{OTHER} refs/heads/mainly\n{ONE} refs/heads/main\n^{OTHER}\n")
    assert commit(package) == ONE
    write(git / "HEAD", f"{OTHER}\n")
    assert commit(package) == OTHER


def test_commit_of_a_linked_work_tree(package: Path, tmp_path: Path) -> None:
    git = tmp_path / "main" / ".git"
    write(package.parent.parent / ".git", f"gitdir: {git}/worktrees/second\n")
    write(git / "worktrees/second/HEAD", "ref: refs/heads/second\n")
    write(git / "worktrees/second/commondir", "../..\n")
    write(git / "refs/heads/second", f"{ONE}\n")
    assert commit(package) == ONE


@pytest.mark.parametrize("head", ["ref: refs/heads/unborn\n", "nonsense\n", ""])
def test_an_invalid_head_gives_no_commit(package: Path, head: str) -> None:
    write(package.parent.parent / ".git/HEAD", head)
    assert commit(package) == ""


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "site-packages" / "qkv"
    package.mkdir(parents=True)
    write(tmp_path / ".git/HEAD", ONE)  # of a repository that merely lies around it
    assert commit(package) == ""
    write(tmp_path / "lib/.git/HEAD", ONE)
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
    assert device_name(torch.device("cpu")).endswith(f", {torch.get_num_threads()} threads")

"""Atomic writes of files and folders, locks, and special files."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import InputError
from qkv.runtime.files import (
    LOCK,
    OLD,
    WRITING,
    absolute_path,
    atomic_folder,
    check_output_file,
    check_output_folder,
    exclusive_lock,
    expand_home,
    is_leftover,
    open_for_append,
    read_regular,
    remove_folder,
    remove_leftovers,
    sha256,
    write_atomically,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writing_a_file_creates_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "page.html"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert names(path.parent) == ["page.html"]


@pytest.mark.parametrize("path", ["loop", "loop/file", "nul\0"])
def test_an_invalid_path_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(InputError):
        read_regular(absolute_path(path))


def test_the_home_of_an_unknown_user_is_an_input_error() -> None:
    assert expand_home("~/x") == Path.home() / "x"
    with pytest.raises(InputError):
        expand_home("~no-such-user/x")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError) as caught:
        write_atomically(path, b"new")
    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["page.html"]


SPECIAL = ["link", "dangling", "loop", "fifo", "socket", "device", "link to a folder"]


def special_file(path: Path, kind: str) -> Path:
    """Create a special file at `path`."""
    target = path.with_name("target")
    if kind == "link":
        target.write_bytes(b"precious")
        path.symlink_to(target)
    elif kind == "link to a folder":
        target.mkdir()
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(target)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(path.parent):  # the path of a socket must be short
            socket.socket(socket.AF_UNIX).bind(path.name)
    else:
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # like /dev/zero
        except PermissionError:
            pytest.skip("needs the right to make a device")
    return path


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the type, inode and (for regular files) content of everything in a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else str(path.lstat().st_ino).encode(),
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("kind", SPECIAL)
def test_output_is_never_written_to_a_special_file(tmp_path: Path, kind: str) -> None:
    path = special_file(tmp_path / "out", kind)
    before = state(tmp_path)
    for refused in (check_output_file, check_output_folder, open_for_append):
        with pytest.raises(InputError, match="out"):
            refused(path)
    with pytest.raises(InputError, match="out"):
        write_atomically(path, b"new")
    if kind != "link to a folder":  # a checkpoint may be one: the link is replaced, and what it points at stays
        with pytest.raises(InputError, match="out"), atomic_folder(path) as scratch:
            (scratch / "file").write_bytes(b"new")
    assert state(tmp_path) == before


@pytest.mark.parametrize("kind", ["dangling", "loop", "fifo", "socket", "device", "link to a folder"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = special_file(tmp_path / "in", kind)
    with pytest.raises(InputError, match="in"):
        read_regular(path, 100)
    with pytest.raises(InputError, match="in"):
        sha256(path)


def test_a_link_to_a_regular_file_is_read_and_its_size_is_bounded(tmp_path: Path) -> None:
    path = special_file(tmp_path / "in", "link")
    assert read_regular(path, 8) == b"precious"
    with pytest.raises(InputError, match="larger"):
        read_regular(path, 7)


def test_output_into_a_read_only_folder_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(os, "access", lambda path, *rights, **options: asked.append(path))
    for check in (check_output_file, check_output_folder):
        with pytest.raises(InputError, match="read-only"):
            check(tmp_path / "new" / "out")
    assert asked == [tmp_path, tmp_path]  # root may write anywhere, so the question itself is what can be tested


def test_an_output_folder_is_new_or_empty(tmp_path: Path) -> None:
    check_output_folder(tmp_path / "new")
    check_output_folder(tmp_path)
    (tmp_path / LOCK).touch()
    with pytest.raises(InputError):
        check_output_folder(tmp_path)
    check_output_folder(tmp_path, ignore=is_leftover)


def test_a_link_to_a_folder_is_replaced_and_its_target_is_kept(tmp_path: Path) -> None:
    link = special_file(tmp_path / "step-1", "link to a folder")
    (tmp_path / "target" / "file").write_bytes(b"precious")
    with atomic_folder(link) as scratch:
        (scratch / "file").write_bytes(b"new")
    assert not link.is_symlink()
    assert (link / "file").read_bytes() == b"new"
    assert (tmp_path / "target" / "file").read_bytes() == b"precious"
    assert names(tmp_path) == ["step-1", "target"]


def test_removing_a_link_to_a_folder_keeps_the_target(tmp_path: Path) -> None:
    link = special_file(tmp_path / "step-1", "link to a folder")
    (tmp_path / "target" / "file").write_bytes(b"precious")
    remove_folder(link)
    (tmp_path / f"{WRITING}1-x").symlink_to("target")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["target"]
    assert (tmp_path / "target" / "file").read_bytes() == b"precious"


def test_a_lock_never_empties_the_target_of_a_link(tmp_path: Path) -> None:
    special_file(tmp_path / LOCK, "link")
    with pytest.raises(InputError), exclusive_lock(tmp_path):
        pass
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("relative", ["file/below", "file/further/below"])
def test_a_path_below_a_file_is_an_error(tmp_path: Path, relative: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    words = str(tmp_path / relative)
    with pytest.raises(InputError, match=words):
        write_atomically(tmp_path / relative, b"")
    with pytest.raises(InputError, match=words), atomic_folder(tmp_path / relative):
        pass
    assert names(tmp_path) == ["file"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_atomically(tmp_path, b"")


def test_a_folder_appears_atomically(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "step-1"
    with atomic_folder(path) as scratch:
        (scratch / "a").write_bytes(b"1")
        assert not path.exists()
    assert (path / "a").read_bytes() == b"1"
    assert names(path.parent) == ["step-1"]


def test_a_new_folder_replaces_the_old_one_completely(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    for name in ("old", "new"):
        with atomic_folder(path) as scratch:
            (scratch / name).write_bytes(b"")
    assert names(path) == ["new"]
    assert names(tmp_path) == ["step-1"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("before", [True, False])
def test_a_failed_write_keeps_the_old_folder(tmp_path: Path, error: type[BaseException], before: bool) -> None:
    path = tmp_path / "step-1"
    if before:
        path.mkdir()
        (path / "old").write_bytes(b"")
    with pytest.raises(error), atomic_folder(path) as scratch:  # noqa: PT012
        (scratch / "new").write_bytes(b"")
        raise error
    assert names(tmp_path) == (["step-1"] if before else [])
    assert not before or names(path) == ["old"]


def test_the_old_folder_is_restored_if_the_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "old").write_bytes(b"")
    rename = os.rename

    def fail_once(source: Path, target: Path) -> None:
        if target == path:
            monkeypatch.undo()
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(InputError, match="Input/output error"), atomic_folder(path) as scratch:
        (scratch / "new").write_bytes(b"")
    assert names(path) == ["old"]
    assert names(tmp_path) == ["step-1"]


def test_leftovers_are_removed_and_replaced_folders_restored(tmp_path: Path) -> None:
    (tmp_path / f"{WRITING}123-page.html").write_bytes(b"half")
    (tmp_path / f"{WRITING}123-step-2").mkdir()
    (tmp_path / f"{WRITING}removed-step-0" / "deep").mkdir(parents=True)
    (tmp_path / f"{OLD}step-1").mkdir()
    (tmp_path / f"{OLD}step-3").mkdir()
    (tmp_path / "step-3" / "new").mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["step-1", "step-3"]
    assert names(tmp_path / "step-3") == ["new"]


def test_removing_a_folder_is_idempotent(tmp_path: Path) -> None:
    (tmp_path / "step-1" / "deep").mkdir(parents=True)
    remove_folder(tmp_path / "step-1")
    remove_folder(tmp_path / "step-1")
    assert names(tmp_path) == []


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


WRITER = """
import itertools, sys
from pathlib import Path
from qkv.runtime.files import atomic_folder, write_atomically
folder = Path(sys.argv[1])
for generation in itertools.count(1):
    with atomic_folder(folder / "checkpoint") as scratch:
        for part in range(5):
            (scratch / str(part)).write_bytes(b"%d" % generation * 5000)
    write_atomically(folder / "page", b"%d\\n" % generation * 100000)
    if generation == 1:
        print("ready", flush=True)
"""


def assert_page_is_whole(page: Path) -> None:
    lines = page.read_bytes().splitlines()
    assert len(lines) == 100_000
    assert len(set(lines)) == 1


def test_a_killed_writer_leaves_complete_files(tmp_path: Path) -> None:
    for attempt in range(12):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(2 * attempt):  # others read meanwhile
            assert_page_is_whole(tmp_path / "page")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert_page_is_whole(tmp_path / "page")
        remove_leftovers(tmp_path)
        parts = [path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()]
        assert len(parts) == 5
        assert len(set(parts)) == 1
        assert names(tmp_path) == ["checkpoint", "page"]

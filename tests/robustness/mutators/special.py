"""Links, FIFOs, sockets and devices instead of files and folders, and output targets that cannot be used."""

import os
import shutil
import socket
import stat
from pathlib import Path

from tests.robustness.mutators.registry import Target, mutator
from tests.robustness.sandbox import Sandbox


@mutator("special")
def link_to_dev_zero(target: Target) -> str:
    return _link(target, Path("/dev/zero"))


@mutator("special")
def link_to_dev_urandom(target: Target) -> str:
    return _link(target, Path("/dev/urandom"))


@mutator("special")
def link_to_itself(target: Target) -> str:
    return _link(target, target.path)


@mutator("special")
def link_to_a_canary_file(target: Target) -> str:
    return _link(target, target.sandbox.canary_file)


@mutator("special")
def link_to_a_canary_folder(target: Target) -> str:
    return _link(target, target.sandbox.canary_folder)


@mutator("special")
def dangling_link(target: Target) -> str:
    return _link(target, target.sandbox.canary_folder / "missing")


@mutator("special")
def fifo(target: Target) -> str:
    _clear(target.path)
    os.mkfifo(target.path)
    return "replace by a FIFO"


@mutator("special")
def unix_socket(target: Target) -> str:
    _clear(target.path)
    _make_socket(target.path)
    return "replace by a socket"


@mutator("special")
def null_device(target: Target) -> str:
    _clear(target.path)
    _make_device(target.path)
    return "replace by a null device"


@mutator("special")
def folder_instead_of_a_file(target: Target) -> str:
    _clear(target.path)
    target.path.mkdir()
    return "replace by an empty folder"


@mutator("special")
def unreadable_file(target: Target) -> str:
    target.path.chmod(0)
    return "chmod 000"


@mutator("special")
def missing_file(target: Target) -> str:
    _clear(target.path)
    return "remove"


@mutator("folder", folders=True)
def folder_linked_to_a_canary_folder(target: Target) -> str:
    return _link(target, target.sandbox.canary_folder)


@mutator("folder", folders=True)
def folder_linked_elsewhere(target: Target) -> str:
    moved = target.path.with_name(f"moved-{target.path.name}")
    target.path.rename(moved)
    target.path.symlink_to(moved)
    return f"move to {moved.name}, and replace by a link to it"


@mutator("folder", folders=True)
def folder_as_a_dangling_link(target: Target) -> str:
    return _link(target, target.sandbox.canary_folder / "missing")


@mutator("folder", folders=True)
def folder_as_a_fifo(target: Target) -> str:
    return fifo(target)


@mutator("folder", folders=True)
def folder_as_a_file(target: Target) -> str:
    _clear(target.path)
    target.path.write_text("a file\n")
    return "replace by a file"


@mutator("folder", folders=True)
def missing_folder(target: Target) -> str:
    return missing_file(target)


@mutator("folder", folders=True)
def unreadable_folder(target: Target) -> str:
    target.path.chmod(0)
    return "chmod 000"


@mutator("folder", folders=True)
def emptied_folder(target: Target) -> str:
    _clear(target.path)
    target.path.mkdir()
    return "remove its files"


def output_targets() -> list[str]:
    """The kinds of output targets."""
    return list(OUTPUTS)


def prepare_output(kind: str, path: Path, sandbox: Sandbox) -> Path:
    """Create an output target of a kind; returns the path to give to the command."""
    return OUTPUTS[kind](path, sandbox) or path


def _linked(path: Path, where: Path) -> None:
    path.symlink_to(where)


def _empty_folder_link(path: Path, sandbox: Sandbox) -> None:
    (sandbox.root / "canary" / "empty").mkdir()
    path.symlink_to(sandbox.root / "canary" / "empty")


def _full_folder(path: Path, sandbox: Sandbox) -> None:
    shutil.copytree(sandbox.canary_folder, path)


def _older_file(path: Path, mode: int) -> None:
    path.write_text("an older file\n")
    path.chmod(mode)


def _below_a_file(path: Path, sandbox: Sandbox) -> Path:
    path.with_name("a-file").write_text("a file\n")
    return path.with_name("a-file") / "deeper" / path.name


def _read_only_folder(path: Path, sandbox: Sandbox) -> Path:
    path.with_name("read-only").mkdir(mode=0o555)
    return path.with_name("read-only") / path.name


OUTPUTS = {
    "null device": lambda path, sandbox: _make_device(path),
    "fifo": lambda path, sandbox: os.mkfifo(path),
    "socket": lambda path, sandbox: _make_socket(path),
    "link to a file": lambda path, sandbox: _linked(path, sandbox.canary_file),
    "link to a folder": lambda path, sandbox: _linked(path, sandbox.canary_folder),
    "link to an empty folder": _empty_folder_link,
    "link to /dev/null": lambda path, sandbox: _linked(path, Path("/dev/null")),
    "link to itself": lambda path, sandbox: _linked(path, path),
    "dangling link": lambda path, sandbox: _linked(path, sandbox.canary_folder / "missing"),
    "folder with files": _full_folder,
    "empty folder": lambda path, sandbox: path.mkdir(),
    "file": lambda path, sandbox: _older_file(path, 0o644),
    "read-only file": lambda path, sandbox: _older_file(path, 0o444),
    "below a file": _below_a_file,
    "in a read-only folder": _read_only_folder,
    "in a new folder": lambda path, sandbox: path.with_name("new") / "newer" / path.name,
    "name that is too long": lambda path, sandbox: path.with_name("x" * 300 + path.suffix),
    "nothing": lambda path, sandbox: None,
}


def _link(target: Target, where: Path) -> str:
    _clear(target.path)
    target.path.symlink_to(where)
    return f"replace by a link to {'itself' if where == target.path else where}"


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _make_socket(path: Path) -> None:
    """A socket may not have a long path, so it is made under a short one relative to its folder."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name[:90])
        Path(path.name[:90]).rename(path.name)
    finally:
        os.fchdir(before)
        os.close(before)


def _make_device(path: Path) -> None:
    """A null device; where it may not be made, a FIFO."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(path)

"""The folder in which one case runs, and the comparison of its contents before and after."""

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True)
class Entry:
    """One file of a snapshot; folders have no time, because their contents are compared."""

    kind: str
    mode: int
    size: int = 0
    mtime: int = 0
    content: str = ""


Snapshot = dict[str, Entry]


@dataclass(frozen=True)
class Sandbox:
    """The folders of one case: input, output, home, temporary files, and canaries that must not change."""

    root: Path

    @classmethod
    def create(cls, root: Path, subject: Path) -> "Sandbox":
        """A new sandbox with a copy of the subject's files as input."""
        sandbox = cls(root)
        for folder in (sandbox.output, sandbox.home, sandbox.temporary, sandbox.working, sandbox.canary_folder):
            folder.mkdir(parents=True)
        shutil.copytree(subject, sandbox.input, symlinks=True)
        sandbox.canary_file.write_text("do not touch\n" * 20)
        (sandbox.canary_folder / "notes.txt").write_text("do not touch either\n")
        (sandbox.canary_folder / "data.bin").write_bytes(bytes(range(256)))
        return sandbox

    @property
    def input(self) -> Path:
        return self.root / "in"

    @property
    def output(self) -> Path:
        return self.root / "out"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def working(self) -> Path:
        return self.root / "cwd"

    @property
    def canary_file(self) -> Path:
        return self.root / "canary" / "file.txt"

    @property
    def canary_folder(self) -> Path:
        return self.root / "canary" / "folder"

    def snapshot(self) -> Snapshot:
        """Names, types, sizes, times and hashes of everything in the sandbox; links are not followed."""
        found: Snapshot = {}
        for folder, names, files in os.walk(self.root):
            for name in (*names, *files):
                path = Path(folder, name)
                found[str(path.relative_to(self.root))] = _entry(path)
        return found

    def remove(self) -> None:
        for folder, names, _ in os.walk(self.root):
            for name in names:
                if not Path(folder, name).is_symlink():
                    Path(folder, name).chmod(0o700)
        shutil.rmtree(self.root)


def changes(before: Snapshot, after: Snapshot, allowed: Sequence[str] = ()) -> list[str]:
    """What is different, as "created NAME", "removed NAME" or "changed NAME", except for names that match a pattern."""
    found = []
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name) and not any(fnmatch(name, pattern) for pattern in allowed):
            verb = "created" if name not in before else "removed" if name not in after else "changed"
            found.append(f"{verb} {name}")
    return found


def _entry(path: Path) -> Entry:
    status = path.lstat()
    kind, mode = KINDS[stat.S_IFMT(status.st_mode)], stat.S_IMODE(status.st_mode)
    if kind == "folder":
        return Entry(kind, mode)
    if kind == "link":
        return Entry(kind, mode, content=os.readlink(path))
    if kind != "file":
        return Entry(kind, mode, mtime=status.st_mtime_ns)
    return Entry(kind, mode, status.st_size, status.st_mtime_ns, _hash(path, mode))


def _hash(path: Path, mode: int) -> str:
    if os.geteuid() != 0 and not mode & stat.S_IRUSR:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

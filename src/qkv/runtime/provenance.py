"""Where a run or a measurement came from: which code, on which machine."""

import hashlib
import platform
import re
from pathlib import Path

import torch

PACKAGE = Path(__file__).parent.parent
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def commit(package: Path = PACKAGE) -> str:
    """The commit of the checkout that the package lies in, or "" where it was installed from elsewhere.

    Read from git's own files: nothing has to be installed, and nothing is run.
    """
    checkout = package.parent.parent  # of src/qkv
    git = checkout / ".git"
    if not (checkout / "pyproject.toml").exists() or not git.exists():
        return ""
    if git.is_file():  # a second work tree: the file says where its own folder is
        git = checkout / _line(git).removeprefix("gitdir: ")
    shared = git / _line(git / "commondir")  # of all work trees; the same folder where there is but one
    head = _line(git / "HEAD")
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        head = _line(git / name) or _line(shared / name) or _packed(shared / "packed-refs", name)
    return head if COMMIT.fullmatch(head) else ""


def _line(path: Path) -> str:
    """The first line of a small file, or "" where there is none."""
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _packed(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line.split()[0] for line in lines if line.split()[1:] == [name]), "")


def source_hash(package: Path = PACKAGE) -> str:
    """A hash of every source file of the package: the code that ran, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(
            f"{path.relative_to(package).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()


def device_name(device: torch.device) -> str:
    """What the machine's documentation calls the device: "NVIDIA H200", or the CPU and how many threads are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        information = ""
    named = re.search(r"^model name\s*:\s*(.+)$", information, flags=re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine() or "CPU"

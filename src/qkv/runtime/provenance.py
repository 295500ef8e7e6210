"""Provenance of runs and measurements: commit, source hash and device."""

import hashlib
import platform
import re
from pathlib import Path

import torch

PACKAGE = Path(__file__).parent.parent
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def commit(package: Path = PACKAGE) -> str:
    """Return the commit of the checkout that contains the package, or "" if there is none.

    Reads git's files directly, so that git need not be installed.
    """
    checkout = package.parent.parent  # of src/qkv
    git = checkout / ".git"
    if not (checkout / "pyproject.toml").exists() or not git.exists():
        return ""
    if git.is_file():  # a linked work tree: the file points to its git directory
        git = checkout / _line(git).removeprefix("gitdir: ")
    shared = git / _line(git / "commondir")  # shared by all work trees
    head = _line(git / "HEAD")
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        head = _line(git / name) or _line(shared / name) or _packed(shared / "packed-refs", name)
    return head if COMMIT.fullmatch(head) else ""


def _line(path: Path) -> str:
    """Return the first line of a small file, or "" if it cannot be read."""
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
    """Return a hash of all source files of the package, including uncommitted changes."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(
            f"{path.relative_to(package).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()


def device_name(device: torch.device) -> str:
    """Return the device name: "NVIDIA H200", or the CPU model and number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"

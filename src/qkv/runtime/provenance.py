"""Provenance of runs and measurements: commit, source hash and device."""

import hashlib
import platform
import re
import subprocess
from pathlib import Path

import torch

PACKAGE = Path(__file__).parent.parent
GIT_TIMEOUT = 10.0  # seconds


def commit(package: Path = PACKAGE) -> str:
    """Return the commit of the checkout that contains the package, or "" if there is none or git is missing."""
    checkout = package.parent.parent  # of src/qkv
    if not (checkout / "pyproject.toml").exists() or not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "--git-dir=.git", "rev-parse", "HEAD"]  # also if GIT_DIR is set
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=GIT_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("ascii", errors="replace").strip()


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
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'' if threads == 1 else 's'}"


def recorded_device(name: str) -> str:
    """Return a recorded device name as `device_name` forms it now: older versions wrote "1 threads"."""
    return re.sub(r"\b1 threads\b", "1 thread", name)


def _processor() -> str:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"

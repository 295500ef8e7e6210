"""Free memory of a device, and out-of-memory errors."""

import ctypes
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from qkv.errors import InputError

CGROUP_FILES = (  # limit, usage and the names of reclaimable pages in memory.stat, for version 2 and version 1
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
# Messages of PyTorch and NumPy errors that are not a MemoryError.
OUT_OF_MEMORY = re.compile(r"can't allocate memory|out of memory|not enough memory|unable to allocate", re.IGNORECASE)


def free_memory(device: torch.device) -> int | None:
    """Return the number of bytes that can still be allocated on a device, or None if unknown.

    On the CPU this is the minimum of the machine's available memory and the remainder of the process limits
    (RLIMIT_AS, RLIMIT_DATA) and cgroup limits.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    candidates = [free for free in (_available(), *_left_by_limits(), *_left_by_cgroups()) if free is not None]
    return min(candidates, default=None)


def require_memory(what: str, parts: Mapping[str, int], device: torch.device, advice: Callable[[], str]) -> None:
    """Raise if the sum of `parts` (name -> bytes) exceeds the free memory of a device."""
    free, needed = free_memory(device), sum(parts.values())
    if free is None or needed <= free:
        return
    from rich.filesize import decimal as format_bytes  # only for the message: qkv.load does not import rich

    breakdown = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items() if count)
    raise InputError(
        f"{what} needs about {format_bytes(needed)} ({breakdown}) but {format_bytes(free)} are free on {device}: "
        f"{advice()}"
    )


def trim_heap() -> None:
    """Give freed memory back to the operating system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory error."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


def _available() -> int | None:
    """Return the kernel's estimate of memory available without swapping."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable")


def _left_by_limits() -> list[int | None]:
    try:
        import resource
    except ImportError:  # Windows
        return []
    status = Path("/proc/self/status")
    used = {resource.RLIMIT_AS: _kilobytes(status, "VmSize"), resource.RLIMIT_DATA: _kilobytes(status, "VmData")}
    limits = {limit: resource.getrlimit(limit)[0] for limit in used}
    return [
        max(0, limits[limit] - (size or 0)) for limit, size in used.items() if limits[limit] != resource.RLIM_INFINITY
    ]


def _left_by_cgroups() -> list[int | None]:
    """Return the memory left by the process's cgroup and its ancestors, counting page cache as free."""
    left: list[int | None] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = Path("/sys/fs/cgroup") / controllers
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root):
            left.append(_left_by_cgroup(folder))
            folder = folder.parent
    return left


def _left_by_cgroup(folder: Path) -> int | None:
    for limit_name, usage_name, reclaimable in CGROUP_FILES:
        limit, usage = _read(folder / limit_name).strip(), _read(folder / usage_name).strip()
        if limit.isdigit() and usage.isdigit():
            pages = re.findall(rf"^(?:{'|'.join(reclaimable)}) (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            return max(0, int(limit) - int(usage) + sum(map(int, pages)))
    return None


def _kilobytes(path: Path, key: str) -> int | None:
    match = re.search(rf"^{key}:\s+(\d+) kB$", _read(path), re.MULTILINE)
    return None if match is None else 1024 * int(match[1])


def _read(path: Path) -> str:
    """Read a /proc or /sys file; "" if it does not exist."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""

"""Worker processes of this machine and Ray clusters."""

import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from qkv.errors import InputError
from qkv.runtime.native import silence_native_stderr
from qkv.runtime.portable import cpu_count

INSTALL_RAY = "--ray requires ray, which is not installed: pip install 'qkv[ray]'"
MAX_WORKERS_PER_CPU = 4
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class WorkerOptions:
    """Where to run: the options --workers, --ray and --ray-address."""

    count: int | None = None
    ray: bool = False
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not self.ray:
            raise InputError("--ray-address requires --ray")
        if self.address is not None and self.address.startswith("ray://"):
            raise InputError("--ray-address: Ray Client (ray://) is not supported: run qkv on a machine of the cluster")
        if self.count is not None and self.count < 1:
            raise InputError(f"--workers {self.count}: must be at least 1")
        if self.address is None and self.count is not None and self.count > MAX_WORKERS_PER_CPU * cpu_count():
            raise InputError(f"--workers {self.count} is too many for the {cpu_count()} CPU(s) of this machine")
        if self.ray and find_spec("ray") is None:
            raise InputError(INSTALL_RAY)

    @property
    def given(self) -> str:
        """The option that requires files, if there is one."""
        return "--ray" if self.ray else "--workers" if self.count is not None else ""


def check_address(address: str) -> None:
    """Raise unless a server answers at HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise InputError(f"--ray-address {address}: expected HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(f"--ray-address {address}: no Ray cluster answers: {error.strerror or error}") from None


def start_ray(options: WorkerOptions) -> Any:
    """Connect to a cluster, or start one on this machine, without dashboard and usage statistics; return the module."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}  # threads must not start it again
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of messages on stderr
    settings: dict[str, Any] = {"address": options.address, "log_to_driver": False, "logging_level": "error"}
    if options.address is not None:
        check_address(options.address)
    else:
        if "RAY_AUTH_MODE" not in os.environ:  # other users cannot connect to the cluster
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        cpus = max(cpu_count(), options.count or 1)
        settings |= {"address": "local", "include_dashboard": False, "num_cpus": cpus}
    try:
        import ray  # reads the environment
        import ray.data
    except ImportError:
        raise InputError(INSTALL_RAY) from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        with silence_native_stderr():  # Ray prints its own log level
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "this machine" if options.address is None else options.address
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"--ray: cannot use the cluster of {where}: {reason}") from error
    return ray


@dataclass(frozen=True)
class Placement:
    """Number of workers, and the CPUs and GPUs of each."""

    workers: int
    threads: int
    gpus: int = 0


def place_workers(nodes: Sequence[Mapping[str, float]], count: int | None, device: str) -> Placement:
    """Return the placement of `count` workers on machines with these resources.

    By default there is one worker per GPU or, without GPUs, one per machine with all of its CPUs.
    """
    if device.startswith("cuda:"):
        raise InputError(f"--device {device}: Ray assigns a GPU to each worker: pass --device cuda")
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if device == "cuda" and not gpus:
        raise InputError("--device cuda: the Ray cluster has no GPUs")
    if device != "cpu" and gpus:
        if count is not None and count > gpus:
            raise InputError(f"--workers {count}: the Ray cluster has {gpus} GPU(s)")
        return Placement(count or gpus, 1, 1)
    cpus = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    count = count or len(cpus)
    if not count or count > sum(cpus):
        raise InputError(f"--workers {count}: the Ray cluster has {sum(cpus)} CPU(s)")
    threads = next(n for n in range(max(cpus), 0, -1) if sum(cpu // n for cpu in cpus) >= count)
    return Placement(count, threads)

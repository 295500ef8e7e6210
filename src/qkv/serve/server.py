"""Run the application with uvicorn: loopback by default, and a graceful end."""

import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from qkv.errors import InputError
from qkv.serve.metrics import Metrics

BACKLOG = 2048


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an error that names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None
    return listener


class Server(uvicorn.Server):
    """A server that reports when it is ready and when it begins to stop."""

    def __init__(self, config: uvicorn.Config, report: Callable[[str], None], address: str) -> None:
        super().__init__(config)
        self._report, self._address = report, address

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and Ctrl-C, and end normally: uvicorn would raise the signal again."""
        handlers = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._report(f"listening on {self._address}")
            self._report("attention: /, endpoints: /docs, stop: Ctrl-C")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        waiting = len(self.server_state.tasks)
        self._report(f"stopping: {waiting} request{'' if waiting == 1 else 's'} to finish")
        await super().shutdown(sockets)


def run_server(
    app: FastAPI, metrics: Metrics, listener: socket.socket, *, grace: float, report: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish the accepted requests, for at most `grace` seconds."""
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log = logging.getLogger("qkv.serve")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(grace)),
        timeout_keep_alive=30,
        lifespan="on",
    )
    server = Server(config, report, address)
    server.run([listener])
    answered, not_answered = metrics.answered
    report(f"stopped: {answered} requests completed, {not_answered} aborted")

"""Load test of `qkv serve` on this machine: throughput of batched and one-at-a-time serving, and behavior under load.

    python -m benchmarks.serving                      # both
    python -m benchmarks.serving throughput --rounds 3
    python -m benchmarks.serving stress --clients 200 --seconds 60

`throughput` serves one language model with --max-batch 32 and with --max-batch 1, in turn, to the same clients.
`stress` mixes completions, translations and embeddings of a small model each. Every answer is compared with the one
computed alone: completions by `qkv.Generator` in this process, the others by the idle server. Servers listen on the
loopback address only, and every run ends after a number of seconds and of requests.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.hub import save_model
from qkv.models.bert import Bert, BertConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import CharTokenizer

HOST = "127.0.0.1"
MOST_REQUESTS = 200_000  # of one run
REFUSED = (429, 503)
WORDS = ("the", "time", "of", "our", "lives", "is", "not", "in", "my", "good", "lord", "and", "you", "love", "king")


@dataclass(frozen=True)
class Call:
    """A request, and the part of the answer that does not depend on the time."""

    path: str
    body: dict[str, Any]
    expected: Any

    @property
    def bytes(self) -> bytes:
        """The HTTP request."""
        body = json.dumps(self.body).encode()
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {HOST}", "Content-Type: application/json"]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@dataclass
class LoadReport:
    """Answers, errors, times and memory of one run."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)  # answers that differ from those computed alone
    without_retry: int = 0  # refusals without Retry-After
    broken: int = 0  # connections that ended in the middle of an answer
    seconds: list[float] = field(default_factory=list)  # of each answered request
    tokens: int = 0
    duration: float = 0.0
    cpu_seconds: float = 0.0  # of the server
    memory: list[int] = field(default_factory=list)  # resident bytes of the server, once per second

    @property
    def summary(self) -> str:
        """One line of figures."""
        rate, times = self.tokens / max(self.duration, 1e-9), sorted(self.seconds) or [0.0]
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        return (
            f"{self.statuses[200] / max(self.duration, 1e-9):,.1f} requests/s, {rate:,.0f} tokens/s "
            f"({self.tokens / max(self.cpu_seconds, 1e-9):,.0f} per CPU second of the server), "
            f"latency {p50:.2f} s (median), {p99:.2f} s (99 %); statuses {dict(sorted(self.statuses.items()))}, "
            f"wrong {len(self.wrong)}, refused without Retry-After {self.without_retry}, broken {self.broken}"
        )


@dataclass(frozen=True)
class RunningServer:
    """A server process and its port."""

    process: subprocess.Popen[str]
    port: int
    seconds_to_start: float

    def last_message(self) -> str:
        """The last line that the server prints, once it has stopped."""
        assert self.process.stderr is not None
        return self.process.stderr.read().strip().rpartition("\n")[2]

    @property
    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(match[1]) * 1024 if match else 0

    @property
    def cpu_seconds(self) -> float:
        """Time of all threads since the start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[RunningServer]:
    """Start `qkv serve` on a free port; terminate it at the end."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "qkv", "serve", *arguments, "--port", "0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if match := re.fullmatch(r"listening on http://.*:(\d+)\n", line):
                yield RunningServer(process, int(match[1]), time.perf_counter() - begin)
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(lines)}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


async def send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
) -> tuple[int, dict[str, str], bytes]:
    """Send a request on an open connection; return the status, headers and body of the answer."""
    writer.write(data)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def fixed_part(path: str, answer: dict[str, Any]) -> Any:
    """Return the part of an answer that does not depend on the time."""
    if path == "/v1/completions":
        return [choice["text"] for choice in answer["choices"]]
    return answer["data"] if path == "/v1/embeddings" else answer["results"]


async def client(port: int, calls: Sequence[Call], report: LoadReport, until: float, numbers: random.Random) -> None:
    """Send one request after the other on one connection; after a refusal, wait for its Retry-After."""
    reader = writer = None
    while time.perf_counter() < until and sum(report.statuses.values()) < MOST_REQUESTS:
        call = numbers.choice(calls)
        begin = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(HOST, port)
            status, headers, body = await send(reader, writer, call.bytes)
        except asyncio.IncompleteReadError as error:
            report.broken += bool(error.partial)
            reader = writer = None
            continue
        except OSError:
            return  # the server has stopped
        report.statuses[status] += 1
        if status == 200:
            record(report, call, json.loads(body), time.perf_counter() - begin)
        elif status in REFUSED and "retry-after" in headers:
            await asyncio.sleep(min(float(headers["retry-after"]), max(0.0, until - time.perf_counter())))
        else:
            report.without_retry += status in REFUSED
        if headers.get("connection", "").lower() == "close":
            writer.close()
            reader = writer = None
    if writer is not None:
        writer.close()


def record(report: LoadReport, call: Call, answer: dict[str, Any], seconds: float) -> None:
    """Count an answer, and compare it with the expected one."""
    report.seconds.append(seconds)
    report.tokens += (answer.get("usage") or {}).get("completion_tokens", 0)
    if (result := fixed_part(call.path, answer)) != call.expected:
        report.wrong.append(f"{call.path} {call.body}: {result} instead of {call.expected}")


async def drive(
    server: RunningServer, calls: Sequence[Call], clients: int, seconds: float, terminate_after: float | None = None
) -> LoadReport:
    """Run clients against a server for some seconds, with SIGTERM to the server after some of them."""
    report, begin, cpu_seconds = LoadReport(), time.perf_counter(), server.cpu_seconds

    async def watch_memory() -> None:
        while True:
            report.memory.append(server.memory)
            await asyncio.sleep(1.0)

    async def terminate(after: float) -> None:
        await asyncio.sleep(after)
        server.process.send_signal(signal.SIGTERM)

    background = [asyncio.create_task(watch_memory())]
    if terminate_after is not None:
        background.append(asyncio.create_task(terminate(terminate_after)))
    until = begin + seconds
    await asyncio.gather(
        *(client(server.port, calls, report, until, random.Random(number)) for number in range(clients))
    )
    report.duration = time.perf_counter() - begin
    if server.process.poll() is None:
        report.cpu_seconds = server.cpu_seconds - cpu_seconds
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    return report


def texts(count: int, seed: int) -> list[str]:
    """Return random texts of 3 to 12 words."""
    numbers = random.Random(seed)
    return [" ".join(numbers.choices(WORDS, k=numbers.randint(3, 12))) for _ in range(count)]


def save_models(folder: Path, *, dim: int, layers: int) -> None:
    """Save a GPT-2, a Transformer and a BERT over characters, with random weights: their answers are arbitrary."""
    tokenizer = CharTokenizer.train(
        [*WORDS, " ,.:;!?'-\n" + "abcdefghijklmnopqrstuvwxyz" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    )
    torch.manual_seed(0)
    size = len(tokenizer)
    models = {
        "gpt": GPT2(GPT2Config(vocab_size=size, dim=dim, heads=dim // 64, layers=layers, max_length=256)),
        "transformer": Transformer(TransformerConfig(source_vocab_size=size, target_vocab_size=size, max_length=128)),
        "bert": Bert(BertConfig(vocab_size=size, dim=128, heads=2, layers=2, ffn_dim=512, max_length=128)),
    }
    for name, model in models.items():
        (folder / name).mkdir()
        save_model(model.eval(), tokenizer, folder / name)


def completion_calls(folder: Path, count: int, max_tokens: int) -> list[Call]:
    """Return completions by sampling, with the texts that `qkv.Generator` computes alone."""
    generator = qkv.Generator(folder / "gpt")
    calls = []
    for seed, prompt in enumerate(texts(count, 1)):
        options = {"temperature": 0.8, "seed": seed}
        expected = generator(prompt, max_new_tokens=max_tokens, **options).continuation
        body = {"model": "gpt", "prompt": prompt, "max_tokens": max_tokens, **options}
        calls.append(Call("/v1/completions", body, [expected]))
    return calls


def other_calls(server: RunningServer, count: int) -> list[Call]:
    """Return translations and embeddings, with the answers that the idle server computes one at a time."""
    bodies = [("/translate", {"model": "transformer", "input": text, "max_new_tokens": 24}) for text in texts(count, 2)]
    bodies += [
        ("/translate", {"model": "transformer", "input": text, "max_new_tokens": 16, "num_beams": 3})
        for text in texts(count // 2, 3)
    ]
    bodies += [("/v1/embeddings", {"model": "bert", "input": text}) for text in texts(count, 4)]

    async def answers() -> list[Call]:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        calls = []
        for path, body in bodies:
            status, _, answer = await send(reader, writer, Call(path, body, None).bytes)
            assert status == 200, answer
            calls.append(Call(path, body, fixed_part(path, json.loads(answer))))
        writer.close()
        return calls

    return asyncio.run(answers())


def throughput(options: argparse.Namespace) -> None:
    """Compare batched with one-at-a-time serving."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_models(folder, dim=options.dim, layers=options.layers)
        calls = completion_calls(folder, 64, options.max_tokens)
        rates: dict[str, list[float]] = {"32": [], "1": []}
        efforts: dict[str, list[float]] = {"32": [], "1": []}  # tokens per CPU second
        environment = {} if options.threads is None else {"OMP_NUM_THREADS": str(options.threads)}
        for round_number in range(options.rounds):
            for batch, measured in rates.items():
                limits = ("--max-batch", batch, "--max-queue", "4096")
                with serving(str(folder / "gpt"), *limits, environment=environment) as server:
                    asyncio.run(drive(server, calls, 4, 2.0))
                    report = asyncio.run(drive(server, calls, options.clients, options.seconds))
                measured.append(report.tokens / report.duration)
                efforts[batch].append(report.tokens / report.cpu_seconds)
                print(f"round {round_number + 1}, --max-batch {batch}: {report.summary}", flush=True)
                assert not report.wrong, report.wrong[0]
        for what, values in (("tokens/s", rates), ("tokens per CPU second", efforts)):
            ratios = [batched / single for batched, single in zip(*values.values(), strict=True)]
            listed = ", ".join(f"{ratio:.2f}x" for ratio in ratios)
            print(f"batched / one at a time, {what}: {listed}; median {statistics.median(ratios):.2f}x")


def stress(options: argparse.Namespace) -> None:
    """Many clients of several models at once; then SIGTERM under load."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_models(folder, dim=128, layers=2)
        calls = completion_calls(folder, 48, 32)
        models = [str(folder / name) for name in ("gpt", "transformer", "bert")]
        with serving(*models, "--max-queue", str(options.max_queue)) as server:
            print(f"listening after {server.seconds_to_start:.1f} s")
            calls += other_calls(server, 48)
            report = asyncio.run(drive(server, calls, options.clients, options.seconds))
        print(f"{options.clients} clients, {report.duration:.0f} s: {report.summary}")
        mib = [size / 2**20 for size in report.memory]
        third = max(1, len(mib) // 3)
        highest = [max(mib[begin : begin + third]) for begin in range(0, 3 * third, third) if mib[begin:]]
        print(f"memory of the server, MiB: {mib[0]:.0f} at first; at most, by thirds: {[round(m) for m in highest]}")
        with serving(*models, "--max-queue", str(options.max_queue)) as server:
            report = asyncio.run(drive(server, calls, options.clients, 30.0, terminate_after=5.0))
            message = server.last_message()
            code = server.process.wait(timeout=60)
        print(f"SIGTERM after 5 s: exit code {code}; {report.summary}")
        received = sum(report.statuses.values())
        print(f"answers received {received:,}; last message of the server: {message}")


def main() -> None:
    """Run the benchmarks of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", nargs="?", choices=("throughput", "stress", "all"), default="all")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dim", type=int, default=384, help="width of the language model of `throughput`")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, help="of the server in `throughput` [all cores]")
    parser.add_argument("--max-queue", type=int, default=64, help="of each model in `stress`")
    options = parser.parse_args()
    if options.what in ("throughput", "all"):
        throughput(options)
    if options.what in ("stress", "all"):
        stress(options)


if __name__ == "__main__":
    main()

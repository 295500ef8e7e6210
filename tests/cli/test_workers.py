"""Folders of files, decoded in one process, in several, and on a Ray cluster, whose workers and drivers are killed."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from qkv.cli.commands import generate, translate
from qkv.errors import InputError
from qkv.runtime import cluster
from qkv.runtime.cluster import Placement, place_workers

from .command import Ended
from .test_bulk import GENERATE, finish, models, start, write_lines  # noqa: F401  (a fixture)

RAY = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
NAMES = ["a.txt", "b.txt", "c.txt"]
# Workers load the plug-ins of the command. This one makes a job long enough to be killed in the middle.
SLOW = """
import time
from qkv.cli.commands import generate, translate

def slow(function):
    def call(*values):
        time.sleep({seconds})
        return function(*values)
    return call

translate._translate, generate._generate = slow(translate._translate), slow(generate._generate)
"""
# Each worker stops after two chunks while the file exists, so that a job cannot end before it is killed.
GATED = """
import os, time
from qkv.cli.commands import translate

original, calls = translate._translate, []

def gated(*values):
    calls.append(values)
    while len(calls) > 2 and os.path.exists({gate!r}):
        time.sleep(0.01)
    return original(*values)

translate._translate = gated
"""
DEADLY = """
import os
from qkv.cli.commands import translate

original = translate._translate

def deadly(translator, lines, *values):
    if "deadly" in lines:
        os._exit(1)
    return original(translator, lines, *values)

translate._translate = deadly
"""
Run = Callable[..., Ended]


def write_shards(folder: Path, counts: list[int]) -> Path:
    folder.mkdir()
    for name, count in zip(NAMES, counts, strict=False):
        write_lines(folder / name, count)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "CHUNK", 8)
    monkeypatch.setattr(generate, "CHUNK", 8)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("translate", ["--json"]),
        ("translate", ["--do-sample", "--seed", 3, "--max-new-tokens", 6]),
        ("generate", GENERATE),
    ],
)
def test_each_file_of_a_folder_has_the_results_of_its_own_job(qkv: Run, models, tmp_path, command, options):  # noqa: F811
    shards = write_shards(tmp_path / "shards", [20, 1, 8])
    expected = {}
    for name in NAMES:
        assert qkv(command, models / command, "--input", shards / name, "--output", tmp_path / name, *options).code == 0
        expected[name] = (tmp_path / name).read_bytes()
    (shards / ".hidden").write_text("abc\n")
    for number, pattern in enumerate((shards, shards / "*.txt", f"{tmp_path}/**/shards/[a-c].txt")):
        out = tmp_path / "new" / str(number)
        done = qkv(command, models / command, "--input", pattern, "--output", out, *options)
        assert (done.code, done.out, done.err) == (0, f"{out}\n", "")
        assert contents(out) == expected
    assert "--overwrite" in qkv(command, models / command, "--input", shards, "--output", out, *options).error


@pytest.mark.usefixtures("short_chunks")
def test_errors_name_the_file(qkv: Run, models, tmp_path):  # noqa: F811
    shards = write_shards(tmp_path / "shards", [20, 20])
    with (shards / "b.txt").open("a") as file:
        file.write("a" * 99 + "\n")
    job = ["translate", models / "translate", "--input", shards, "--output", tmp_path / "out"]
    for options in ([], ["--workers", 2]):
        assert qkv(*job, *options).error.startswith("b.txt: input 21 ")
    with (shards / "b.txt").open("a") as file:
        file.write("\n? ?\n")
    assert qkv(*job, "--strict").error.startswith(f"{shards / 'b.txt'}: input 22 ")
    assert not (tmp_path / "out").exists()
    (shards / "b.txt").write_text((shards / "b.txt").read_text().replace("a" * 99, "a"))
    done = qkv(*job)
    assert done.code == 0
    assert "input b.txt:23" in done.err
    assert f"first at {shards / 'b.txt'}, line 22" in done.err


def test_inputs_that_cannot_be_decoded_as_a_folder(qkv: Run, models, tmp_path):  # noqa: F811
    shards = write_shards(tmp_path / "shards", [2])
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("abc\n")
    (tmp_path / "file").write_text("mine\n")
    command, out = ["translate", models / "translate"], ["--output", tmp_path / "out"]
    assert "no file matches" in qkv(*command, "--input", tmp_path / "*.txt", *out).error
    assert "has no files" in qkv(*command, "--input", tmp_path / "empty", *out).error
    assert "same name" in qkv(*command, "--input", tmp_path / "*" / "a.txt", *out).error
    assert "--output" in qkv(*command, "--input", shards).error
    assert "choose a folder" in qkv(*command, "--input", shards, "--output", tmp_path / "file").error
    assert "is a folder" in qkv(*command, "--input", shards / "a.txt", "--output", shards).error
    (shards / "trees.conllu").write_text("\n")
    assert "trees.conllu" in qkv(*command, "--input", shards, *out).error
    (tmp_path / "[x].txt").write_text("abc\n")  # a file, although its name is a pattern
    assert qkv(*command, "--input", tmp_path / "[x].txt", *out).code == 0


def test_options_of_workers(qkv: Run, models, tmp_path, monkeypatch):  # noqa: F811
    lines = write_lines(tmp_path / "in.txt", 2)
    command, files = ["translate", models / "translate"], ["--input", lines, "--output", tmp_path / "out.txt"]
    for count in (0, 10_000):
        assert f"--workers {count}" in qkv(*command, *files, "--workers", count).error
    assert "--ray-address requires --ray" in qkv(*command, *files, "--ray-address", "auto").error
    assert "--workers requires --input" in qkv(*command, "abc", "--workers", 2).error
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    assert qkv(*command, *files, "--ray").error == cluster.INSTALL_RAY
    monkeypatch.setattr(cluster, "find_spec", lambda name: name)
    assert "--ray requires --input" in qkv(*command, "abc", "--ray").error
    assert "Ray Client" in qkv(*command, *files, "--ray", "--ray-address", "ray://host:10001").error


CPU, GPU = {"CPU": 8.0}, {"CPU": 32.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("nodes", "count", "device", "expected"),
    [
        ([CPU], None, "auto", Placement(1, 8)),
        ([CPU, CPU], None, "auto", Placement(2, 8)),
        ([CPU], 3, "cpu", Placement(3, 2)),
        ([CPU, {"CPU": 3.0}], 3, "auto", Placement(3, 3)),
        ([CPU, {"memory": 1.0}], 8, "auto", Placement(8, 1)),
        ([CPU, GPU], None, "auto", Placement(4, 1, 1)),
        ([GPU, GPU], 3, "cuda", Placement(3, 1, 1)),
        ([GPU], None, "cpu", Placement(1, 32)),
        ([CPU], 9, "auto", "8 CPU"),
        ([GPU], 5, "auto", "4 GPU"),
        ([CPU], None, "cuda", "no GPUs"),
        ([GPU], None, "cuda:1", "--device cuda"),
    ],
)
def test_workers_share_the_machines_of_a_cluster(nodes, count, device, expected):
    if isinstance(expected, Placement):
        assert place_workers(nodes, count, device) == expected
        return
    with pytest.raises(InputError, match=expected):
        place_workers(nodes, count, device)


class BulkJob:
    """A command in its own process, on shards in a folder, with short chunks and a plug-in."""

    def __init__(self, command: str, models: Path, folder: Path, *options: object, chunk: int, plugin: str) -> None:  # noqa: F811
        self.out = folder / "out"
        self._command, self._chunk = command, chunk
        (folder / "plugin.py").write_text(plugin)
        self._arguments = [
            models / command, "--input", folder / "shards", "--output", self.out, "--plugin", folder / "plugin.py",
            *options,
        ]  # fmt: skip

    def start(self, *options: object) -> subprocess.Popen[bytes]:
        return start(self._command, [*self._arguments, *options], chunk=self._chunk)

    def done(self) -> tuple[int, int]:
        """Number of complete files, and of finished lines of the next."""
        try:
            progress = json.loads((self.out / "bulk.progress.json").read_text())
        except (FileNotFoundError, ValueError):
            return 0, 0
        return progress["files"], progress["inputs"]

    def wait(self, process: subprocess.Popen[bytes], done: tuple[int, int]) -> None:
        """Wait until a running job has finished some more lines."""
        while self.done() < done:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield (process id, command line) of a process's descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    for child in parents:
        ancestor = child
        while ancestor in parents and ancestor != pid:
            ancestor = parents[ancestor]
        if ancestor == pid and child != pid:
            try:
                yield child, (Path("/proc") / str(child) / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue


def find_workers(process: subprocess.Popen[bytes], title: str) -> list[int]:
    return [pid for pid, command in descendants(process.pid) if title in command]


def wait_until_ended(pids: list[int]) -> None:
    for _ in range(300):
        if not any((Path("/proc") / str(pid)).exists() for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail(f"processes {pids} have not ended")


def check_processes(qkv: Run, models: Path, folder: Path, *victims: str) -> None:  # noqa: F811
    """Kill one of two worker processes or the driver, or interrupt the job; then finish it."""
    shards, expected, gate = write_shards(folder / "shards", [200, 60]), folder / "expected", folder / "gate"
    assert qkv("translate", models / "translate", "--input", shards, "--output", expected).code == 0
    job = BulkJob("translate", models, folder, "--workers", 2, chunk=16, plugin=GATED.format(gate=str(gate)))
    for victim in victims:
        gate.touch()
        _, before = job.done()  # of the first file: two workers finish at most 64 lines before they stop
        process = job.start("--resume")
        job.wait(process, (0, before + 32))
        children = find_workers(process, "multiprocessing")
        signals = {"worker": (children[-1], signal.SIGKILL), "interrupt": (process.pid, signal.SIGINT)}
        os.kill(*signals.get(victim, (process.pid, signal.SIGKILL)))
        gate.unlink()
        error = process.communicate(timeout=60)[1].decode()
        wait_until_ended(children)
        assert process.returncode == {"worker": 1, "interrupt": 130}.get(victim, -signal.SIGKILL)
        assert victim == "driver" or (error.count("\n"), "--resume" in error) == (1, True), error
        assert (0, 0) < job.done() < (2, 0)
    finish(job.start("--resume"))
    assert contents(job.out) == contents(expected)


def test_a_worker_process_is_killed(qkv: Run, models, tmp_path):  # noqa: F811
    check_processes(qkv, models, tmp_path, "worker")


@pytest.mark.slow
def test_worker_processes_and_drivers_are_killed(qkv: Run, models, tmp_path):  # noqa: F811
    check_processes(qkv, models, tmp_path, "worker", "driver", "interrupt")


@RAY
@pytest.mark.slow
def test_a_ray_worker_is_killed(qkv: Run, models, tmp_path):  # noqa: F811
    shards = write_shards(tmp_path / "shards", [200, 100])
    expected = tmp_path / "expected"
    job = BulkJob("translate", models, tmp_path, "--ray", "--workers", 2, chunk=16, plugin=SLOW.format(seconds=0.1))
    process = job.start()
    assert qkv("translate", models / "translate", "--input", shards, "--output", expected).code == 0
    job.wait(process, (0, 32))
    found = find_workers(process, "ray::MapWorker")
    assert len(found) == 2
    os.kill(found[0], signal.SIGKILL)
    finish(process)
    assert contents(job.out) == contents(expected)


@RAY
@pytest.mark.slow
@pytest.mark.parametrize(("command", "options"), [("translate", []), ("generate", GENERATE)])
def test_a_long_job_with_ray_is_killed_again_and_again(qkv: Run, models, tmp_path, command, options):  # noqa: F811
    """Three drivers and two workers are killed."""
    shards = write_shards(tmp_path / "shards", [8000, 4000, 8000])
    expected, generator = tmp_path / "expected", random.Random(0)
    assert qkv(command, models / command, "--input", shards, "--output", expected, *options).code == 0
    job = BulkJob(
        command, models, tmp_path, "--ray", "--workers", 2, *options, chunk=32, plugin=SLOW.format(seconds=0.05)
    )
    process = job.start()
    moments = [((0, 3000), "driver"), ((0, 6000), "worker"), ((1, 1000), "driver"), ((2, 100), "worker")]
    for moment, victim in [*moments, ((2, 4000), "driver")]:
        job.wait(process, moment)
        time.sleep(generator.random() * 0.1)
        found = find_workers(process, "ray::MapWorker")
        if victim == "worker":
            os.kill(generator.choice(found), signal.SIGKILL)
            continue
        process.kill()
        process.communicate()
        wait_until_ended(found)
        assert job.done() < (3, 0)
        process = job.start("--resume")
    finish(process)
    assert contents(job.out) == contents(expected)
    assert sum(data.count(b"\n") for data in contents(job.out).values()) == 20_000


@RAY
@pytest.mark.slow
def test_lines_that_end_every_worker_are_an_error(models, tmp_path):  # noqa: F811
    shards = write_shards(tmp_path / "shards", [100])
    with (shards / "a.txt").open("a") as file:
        file.write("deadly\n")
    job = BulkJob("translate", models, tmp_path, "--ray", "--workers", 2, chunk=8, plugin=DEADLY)
    process = job.start()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "lines 97 to 101 have ended 5 workers" in error.decode().splitlines()[-1]
    assert job.done() == (0, 96)


@RAY
@pytest.mark.slow
def test_errors_of_ray_workers(models, tmp_path):  # noqa: F811
    shards = write_shards(tmp_path / "shards", [20, 100])
    with (shards / "b.txt").open("a") as file:
        file.write("a" * 99 + "\n")
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "translate").symlink_to(models / "generate")
    address = ["--ray-address", "127.0.0.1:1"]
    for folder, options, message in (
        (models, [], "error: b.txt: input 101 has "),
        (tmp_path / "wrong", [], "error: "),
        (models, address, "error: --ray-address 127.0.0.1:1: no Ray cluster answers"),
    ):
        job = BulkJob(
            "translate", folder, tmp_path, "--ray", "--workers", 2, *options, chunk=8, plugin=SLOW.format(seconds=0.0)
        )
        process = job.start()
        _, error = process.communicate(timeout=120)
        assert process.returncode == 2, error.decode()
        assert error.decode().startswith(message), error.decode()
        assert error.decode().count("\n") == 1
        assert not job.out.exists()

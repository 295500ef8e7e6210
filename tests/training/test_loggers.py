"""Loggers: what they receive, what happens if one fails, and MLflow and Weights & Biases themselves."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from qkv.errors import InputError
from qkv.registry import register
from qkv.tasks.base.task import Sample
from qkv.training import job
from qkv.training.display import Display, loss_chart
from qkv.training.log import Logger, check_loggers, samples_table

from .stopping import assert_bit_equal, stop_after


@register("logger", "test_memory")
class Memory(Logger):
    """Keeps what it receives, and fails at `fail_at`."""

    fail_at: int | None = None
    received: list = []  # noqa: RUF012

    def __init__(self, run) -> None:
        Memory.received = [("config", run.config["train"]["epochs"], run.first_step)]

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        if Memory.fail_at is not None and step >= Memory.fail_at:
            raise ConnectionError("the server is down")
        self.received.append((kind, step, dict(values)))

    def log_samples(self, step: int, samples) -> None:
        self.received.append(("samples", step, list(samples)))

    def close(self) -> None:
        self.received.append(("close",))


@pytest.fixture(autouse=True)
def _working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "fail_at", None)


def read_log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_logger_receives_the_values_of_the_log(short, tmp_path: Path) -> None:
    done = job.begin(short, tmp_path / "run", "cpu", loggers=["test_memory"])
    (config, *values, close) = Memory.received
    assert config == ("config", short.train.epochs, 1)
    assert close == ("close",)
    assert not (tmp_path / "run" / "tensorboard").exists()
    records = read_log(done.run.folder)
    assert [(record["kind"], record["step"]) for record in records] == [value[:2] for value in values]
    assert values[0][2] == {key: value for key, value in records[0].items() if key not in ("kind", "step")}


def test_a_logger_that_fails_is_reported_once_and_training_continues(
    short, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Memory, "fail_at", 8)
    done = job.begin(short, tmp_path / "run", "cpu", loggers=["test_memory", "tensorboard"])
    assert done.state.finished
    errors = capsys.readouterr().err
    assert errors.count("test_memory failed") == 1
    assert "the server is down" in errors
    assert [record["step"] for record in read_log(done.run.folder)][-1] == done.state.step
    assert list((done.run.folder / "tensorboard").iterdir())


def test_unknown_and_missing_loggers_are_reported_before_training(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"unknown logger 'tensorbord' \(did you mean tensorboard"):
        job.begin(tiny, tmp_path / "run", "cpu", loggers=["tensorbord"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'qkv\[wandb\]'"):
        check_loggers(["wandb"])
    assert not (tmp_path / "run").exists()


def test_samples_are_logged_and_do_not_change_training(
    short, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.begin(short, tmp_path / "with", "cpu", display=Display(samples=2))
    shown = capsys.readouterr().err
    job.begin(short, tmp_path / "without", "cpu", display=Display(samples=0))
    assert "reference:" not in capsys.readouterr().err
    assert_bit_equal(tmp_path / "with", tmp_path / "without")
    samples = [record for record in read_log(tmp_path / "with") if record["kind"] == "samples"]
    steps = [record["step"] for record in read_log(tmp_path / "with") if record["kind"] == "valid"]
    assert [record["step"] for record in samples] == steps
    pairs = short.data.load().splits["valid"][:2]
    assert [sample[::2] for sample in samples[-1]["samples"]] == [[pair.source, pair.target] for pair in pairs]
    assert shown.count(f"  {pairs[0].source} -> ") == len(steps)
    (events,) = (tmp_path / "with" / "tensorboard").iterdir()
    texts = [value for event in EventFileLoader(str(events)).Load() for value in event.summary.value]
    tables = [value.tensor.string_val[0].decode() for value in texts if value.tag == "samples"]
    assert len(tables) == len(steps)
    assert pairs[0].target in tables[-1]


def test_samples_of_a_language_model_draw_no_random_numbers_of_training(tiny_text, tmp_path: Path) -> None:
    job.begin(tiny_text, tmp_path / "with", "cpu")
    job.begin(tiny_text, tmp_path / "without", "cpu", display=Display(samples=0))
    assert_bit_equal(tmp_path / "with", tmp_path / "without")
    samples = [record["samples"] for record in read_log(tmp_path / "with") if record["kind"] == "samples"]
    assert all(len(sample[1]) > 0 for sample in samples[-1])
    text = tiny_text.data.load().splits["valid"]
    assert all(sample[0] + sample[2] in text for sample in samples[-1])


def test_a_table_of_samples_is_markdown() -> None:
    table = samples_table([Sample("a|b", "two\nlines", "x")])
    assert table.splitlines()[2] == r"| a\|b | two lines | x |"


def test_the_chart_has_the_losses_at_their_positions() -> None:
    lines = loss_chart([(0.0, 4.0), (0.5, 3.0), (1.0, 2.0)], width=4, height=3)
    assert [line[:8].strip() for line in lines] == ["4", "", "2"]
    grid = {
        (4 * row + dot, 2 * column + side)
        for row, line in enumerate(lines)
        for column, character in enumerate(line[10:])
        for dot, bits in enumerate(((1, 8), (2, 16), (4, 32), (64, 128)))
        for side, bit in enumerate(bits)
        if ord(character) - 0x2800 & bit
    }
    assert {(0, 0), (11, 7)} <= grid
    assert len(grid) == 8  # one dot per column
    assert [row for row, _ in sorted(grid, key=lambda dot: dot[1])] == sorted(row for row, _ in grid)
    assert loss_chart([(0.1, float("nan"))], 4, 3) == []
    assert loss_chart([(0.5, 1.0)], 0, 3) == []
    falling = loss_chart([(0.0, 100.0), (0.5, 1.0), (1.0, 0.01)], 10, 5)  # logarithmic: the middle is in the middle
    assert any(character != "\u2800" for character in falling[2][10:])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server of this machine."""
    pytest.importorskip("mlflow.server", reason="needs mlflow with its server (pip install mlflow)")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'runs.db'}", "--artifacts-destination", str(folder)]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_mlflow_has_config_metrics_and_samples_of_a_resumed_run(
    tiny, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    mlflow.set_tracking_uri(server)
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        assert not job.begin(tiny, tmp_path / "run", "cpu", loggers=["mlflow"]).state.finished
    done = job.resume(tmp_path / "run", "cpu", loggers=["mlflow"])
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("qkv").experiment_id])  # one run, resumed
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["train.epochs"] == str(tiny.train.epochs)
    assert run.data.params["model.hidden_dim"] == "16"
    logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "valid/loss")}
    expected = {record["step"]: record["loss"] for record in read_log(done.run.folder) if record["kind"] == "valid"}
    assert logged == pytest.approx(expected)
    names = [file.path for file in client.list_artifacts(run.info.run_id, "samples")]
    assert [int(name[-11:-3]) for name in names] == sorted(expected)


@pytest.mark.slow
def test_training_continues_without_an_mlflow_server(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    began = time.monotonic()
    assert job.begin(tiny, tmp_path / "run", "cpu", loggers=["mlflow"]).state.finished
    assert capsys.readouterr().err.count("warning: mlflow failed") == 1
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_wandb_offline(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    done = job.begin(tiny, tmp_path / "run", "cpu", loggers=["wandb"])
    assert done.state.finished
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert list(folder.glob("run-*.wandb"))
    assert json.loads((tmp_path / "run" / "loggers.json").read_text())["wandb"] in folder.name

"""Training logs: one JSON object per line, TensorBoard event files, and the services MLflow and Weights & Biases."""

import importlib
import json
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from qkv.errors import InputError
from qkv.registry import lookup, register
from qkv.runtime.documents import read_object
from qkv.runtime.files import name_output_errors, open_for_append, write_atomically
from qkv.tasks.base.task import Sample
from qkv.training.run_manifest import flat

DEFAULT_LOGGERS = ("tensorboard",)
IDS = "loggers.json"  # in a run's folder: its ids in services, with which it is resumed
MAX_PARAMETER = 500  # characters of a config value, the limit of old MLflow servers
MAX_PARAMETERS = 100  # of one request to MLflow
REQUEST_SECONDS, REQUEST_RETRIES = "10", "1"  # MLflow would retry for minutes


@dataclass(frozen=True)
class LoggedRun:
    """The run that is logged."""

    folder: Path
    first_step: int  # that will be logged; more than 1 if the run is resumed
    config: Mapping[str, Any]  # of the recipe

    @property
    def name(self) -> str:
        return self.folder.name

    def saved_id(self, service: str) -> str | None:
        """Return the id of a resumed run in a service; None for a new run."""
        path = self.folder / IDS
        return None if self.first_step == 1 or not path.exists() else read_object(path).get(service)

    def save_id(self, service: str, value: str) -> None:
        """Store the id of the run in a service."""
        path = self.folder / IDS
        ids = read_object(path) if path.exists() else {}
        write_atomically(path, json.dumps({**ids, service: value}).encode())


class Logger(ABC):
    """Receives the values of training steps and validations; a logger is made when training starts or resumes."""

    module: ClassVar[str] = ""  # that it needs, from an extra of the same name
    essential: ClassVar[bool] = False  # whether training stops if the logger fails

    @abstractmethod
    def __init__(self, run: LoggedRun) -> None: ...

    @abstractmethod
    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Log the values of a step; `kind` is "train" or "valid"."""

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:  # noqa: B027  (optional)
        """Log outputs for a few validation examples."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left; called once."""


class Log:
    """Writes values to log.jsonl and to the chosen loggers.

    A service that fails is reported once and then left out, and training continues. A file that cannot be written is an
    error, as the checkpoint that follows could not be written either.
    """

    def __init__(self, run: LoggedRun, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._loggers: dict[str, Logger] = {}
        for name in ("jsonl", *names):
            logger_class = lookup("logger", name)
            try:
                self._loggers[name] = logger_class(run)
            except Exception as error:
                if logger_class.essential:
                    self.__exit__(type(error), error, None)
                    raise
                self._report(name, error)

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        self._each(lambda logger: logger.log(step, kind, values))

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Log outputs for a few validation examples."""
        self._each(lambda logger: logger.log_samples(step, samples))

    def _each(self, call: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                call(logger)
            except Exception as error:
                if logger.essential:
                    raise
                del self._loggers[name]
                self._report(name, error)

    def _report(self, name: str, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._warn(f"warning: {name} failed and is not used any more; training continues: {reason}")

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, logger in self._loggers.items():
            try:
                logger.close()
            except Exception as failure:  # an error that ended training takes precedence
                if logger.essential and error is None:
                    raise
                if not logger.essential:
                    self._report(name, failure)


class NoLog(Log):
    """Log of a process that writes none."""

    def __init__(self) -> None:
        self._loggers = {}


def check_loggers(names: Sequence[str]) -> None:
    """Raise if a logger is not known, or its package is not installed."""
    for name in names:
        module = lookup("logger", name).module
        try:
            importlib.import_module(module or "json")
        except ImportError:
            raise InputError(f"--log {name} needs the package {module}: pip install 'qkv[{name}]'") from None


@register("logger", "jsonl")
class JsonlLogger(Logger):
    """Appends one JSON object per line to log.jsonl."""

    essential = True

    def __init__(self, run: LoggedRun) -> None:
        self._path = run.folder / "log.jsonl"
        self._file = open_for_append(self._path)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self._append({"step": step, "kind": kind, **values})

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._append({"step": step, "kind": "samples", "samples": samples})

    def _append(self, record: Mapping[str, Any]) -> None:
        with name_output_errors(self._path):
            self._file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
            self._file.flush()

    def close(self) -> None:
        with name_output_errors(self._path):
            self._file.close()


@register("logger", "tensorboard")
class TensorBoard(Logger):
    """Writes an event file to RUN/tensorboard, for `tensorboard --logdir RUN`."""

    essential = True

    def __init__(self, run: LoggedRun) -> None:
        self._events = EventFile(run.folder / "tensorboard", run.first_step)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self._events.write(step, {f"{kind}/{name}": value for name, value in values.items()})

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._events.write_text(step, "samples", samples_table(samples))

    def close(self) -> None:
        with name_output_errors(self._events.path):
            self._events.file.close()


@register("logger", "mlflow")
class MLflow(Logger):
    """Logs to the MLflow server of MLFLOW_TRACKING_URI; the experiment is MLFLOW_EXPERIMENT_NAME, or qkv."""

    module = "mlflow"

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", REQUEST_SECONDS)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", REQUEST_RETRIES)
        import mlflow
        from mlflow.entities import Metric, Param

        self._client, self._metric = mlflow.MlflowClient(), Metric
        saved = run.saved_id("mlflow")
        if saved is not None:
            self._id = saved
            self._client.update_run(saved, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "qkv")
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        values = {key: str(value)[:MAX_PARAMETER] for key, value in flat(run.config).items() if value is not None}
        parameters = [Param(key, value) for key, value in values.items()]
        for begin in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[begin : begin + MAX_PARAMETERS])
        run.save_id("mlflow", self._id)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        now = round(time.time() * 1000)
        metrics = [self._metric(f"{kind}/{name}", value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._client.log_text(self._id, samples_table(samples), f"samples/step-{step:08d}.md")

    def close(self) -> None:
        self._client.set_terminated(self._id)


@register("logger", "wandb")
class WeightsAndBiases(Logger):
    """Logs to Weights & Biases; WANDB_PROJECT and WANDB_MODE (offline) are those of wandb."""

    module = "wandb"

    def __init__(self, run: LoggedRun) -> None:
        import wandb

        saved = run.saved_id("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "qkv"),
            name=run.name,
            config=dict(run.config),
            dir=str(run.folder),
            id=saved,
            resume=None if saved is None else "allow",
        )
        self._table = wandb.Table
        run.save_id("wandb", self._run.id)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self._run.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._run.log(
            {"samples": self._table(columns=list(Sample._fields), data=[list(s) for s in samples])}, step=step
        )

    def close(self) -> None:
        self._run.finish()


def samples_table(samples: Sequence[Sample]) -> str:
    """Return samples as a Markdown table."""
    rows = [" | ".join(" ".join(text.split()).replace("|", "\\|") for text in sample) for sample in samples]
    return "\n".join(["| input | output | reference |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)])


class EventFile:
    """A TensorBoard event file that is written synchronously, so that errors are raised here and not in a thread."""

    def __init__(self, folder: Path, first_step: int) -> None:
        with name_output_errors(folder):
            if folder.is_symlink():
                raise InputError(f"{folder}: is a symbolic link; remove it")
            folder.mkdir(exist_ok=True)
        now = time.time()
        self.path = folder / f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = open_for_append(self.path)
        self._records = RecordWriter(self.file)
        self._append(Event(wall_time=now, file_version="brain.Event:2"))
        # Makes TensorBoard discard events of other files in the folder from this step on.
        self._append(Event(wall_time=now, step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the scalars of a step."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Append a text in Markdown."""
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        metadata = create_summary_metadata(display_name=tag, description="")
        value = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))

    def _append(self, event: Any) -> None:
        with name_output_errors(self.path):
            self._records.write(event.SerializeToString())
            self._records.flush()

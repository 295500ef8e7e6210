"""Deploy the server on a Ray cluster: `serve run qkv.serve.ray_serve:build models=/shared/runs/a,/shared/runs/b`.

Ray starts replicas of the application of `qkv.serve.app` on the machines of the cluster, and distributes requests among
them. Each replica loads all models, which must be at the same paths on every machine, and batches its own requests.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve

from qkv.serve.settings import ServeSettings, read_api_keys


class Arguments(BaseModel):
    """Arguments of `serve run`: those of the replicas, and any setting of `ServeSettings`."""

    model_config = ConfigDict(extra="forbid")

    models: str = Field(min_length=1)  # separated by commas, as in `qkv serve`
    replicas: int = Field(default=1, ge=1)
    cpus: float = Field(default=1.0, gt=0)  # of a replica; also the number of its threads
    gpus: float = Field(default=0.0, ge=0)
    max_requests: int = Field(default=1000, ge=1)  # of a replica at once; its own queues refuse earlier
    settings: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _collect_settings(cls, values: dict[str, Any]) -> dict[str, Any]:
        names = set(values) & set(ServeSettings.model_fields)
        own = {name: value for name, value in values.items() if name not in names}
        return own | {"settings": {**own.get("settings", {}), **{name: values[name] for name in names}}}


@serve.deployment
@serve.ingress()
class Replica:
    """One copy of the application."""

    def __init__(self, models: list[str], settings: dict[str, Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._models, self._settings = models, settings

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application; Ray runs its lifespan, which loads the models."""
        from qkv.serve.app import create_app

        keys = self._settings.get("api_keys") or read_api_keys(None)
        return create_app(self._models, ServeSettings(**{**self._settings, "api_keys": keys}))


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application for `serve run` and `serve deploy`."""
    checked = Arguments.model_validate(arguments)
    settings = ServeSettings.model_validate(checked.settings, strict=False)
    options = {
        "num_replicas": checked.replicas,
        "max_ongoing_requests": checked.max_requests,
        "graceful_shutdown_timeout_s": settings.timeout,
        "ray_actor_options": {"num_cpus": checked.cpus, "num_gpus": checked.gpus},
    }
    deployment = Replica.options(**options)  # type: ignore[attr-defined]
    application: serve.Application = deployment.bind(
        checked.models.split(","), settings.model_dump(), max(1, round(checked.cpus))
    )
    return application

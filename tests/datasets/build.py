"""Build and load registered datasets by name."""

from typing import Any

from qkv.datasets.dataset import Dataset
from qkv.registry import lookup


def dataset(name: str, **options: Any) -> Any:
    """The config of a dataset."""
    return lookup("dataset", name)(**options)


def load(name: str, **options: Any) -> Dataset[Any]:
    """All splits of a dataset."""
    return dataset(name, **options).load()

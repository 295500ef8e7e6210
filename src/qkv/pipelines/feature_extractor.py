"""Features of photographs from a pretrained backbone, and files of them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16, UInt8

from qkv.datasets.examples.captions import BACKBONE, MAX_BYTES
from qkv.errors import InputError
from qkv.hub.backbones import load_backbone
from qkv.runtime.files import write_atomically

BATCH = 4  # images; the activations of more do not fit the cache of a CPU core
FLOAT16_BYTES = 2

Pixels = UInt8[np.ndarray, "3 height width"]
Grid = Float16[np.ndarray, "features rows columns"]


class FeatureExtractor:
    """A backbone by name: photographs in, a grid of float16 features per photograph out."""

    def __init__(self, name: str, folder: str | Path | None = None) -> None:
        self.name = name
        self.backbone = load_backbone(name, folder)

    @torch.inference_mode()
    def __call__(
        self, pixels: UInt8[np.ndarray, "batch 3 height width"]
    ) -> Float16[np.ndarray, "batch features rows columns"]:
        """Return the features of photographs whose height and width are multiples of the stride."""
        images = self.backbone.scale(torch.from_numpy(pixels)).contiguous(memory_format=torch.channels_last)
        return self.backbone.features(images).half().contiguous().numpy()

    def grids(self, images: Iterable[tuple[str, Pixels]]) -> Iterator[tuple[str, Grid]]:
        """Yield the name and the features of each image."""
        remaining = iter(images)
        while batch := list(islice(remaining, BATCH)):
            features = self(np.stack([pixels for _, pixels in batch]))
            yield from zip((name for name, _ in batch), features, strict=True)


def write_features(
    extractor: FeatureExtractor,
    images: Iterable[tuple[str, Pixels]],
    count: int,
    side: int,
    path: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the features of `count` images of side x side pixels to a safetensors file, complete or not at all."""
    from safetensors.numpy import save

    size = count * FLOAT16_BYTES * extractor.backbone.dim * (side // extractor.backbone.stride) ** 2
    if size > MAX_BYTES:
        raise InputError(f"{path}: the features of {count:,} images take {size / 2**30:.0f} GiB: set a smaller --side")
    grids: dict[str, np.ndarray] = {}
    for done, (name, grid) in enumerate(extractor.grids(images), start=1):
        grids[name] = grid
        progress(done)
    write_atomically(path, save(grids, metadata={BACKBONE: extractor.name}))

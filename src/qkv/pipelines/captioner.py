"""Image captioning, with the attention of each word over the image."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image

from qkv.attention import watch
from qkv.datasets.batching import batch_by_length
from qkv.datasets.examples.captions import feature_names, read_features
from qkv.datasets.formats.images import (
    ImageSource,
    image_name,
    image_of_array,
    load_image,
    pixels_for_display,
    read_image_for_display,
    resize_image,
    short_names,
)
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, GenerationConfig, Hypothesis, Request, Sampling, Tokens, generate
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.pipelines.feature_extractor import FeatureExtractor
from qkv.pipelines.inputs.image_preprocessing import as_model_input, as_rgb
from qkv.pipelines.inputs.text_inputs import inference_batch_size
from qkv.pipelines.output import Answer, AttentionMap, AttentionMaps, region_names
from qkv.pipelines.pipeline import DecoderPipeline, DecoderTokens, one_or_many
from qkv.types import Float, Tensor

MAX_HYPOTHESES = 256  # decoded at a time, if no batch size is given
FEATURES = ".safetensors"  # suffix of a file of features
BLANK = 224  # gray level shown instead of an image if only its features are known
GREEDY = GenerationConfig()


@dataclass(frozen=True, kw_only=True, repr=False)
class Caption(Answer):
    """A caption; the rows of its maps are its tokens, the columns the cells of the feature grid in row-major order."""

    pixels: UInt8[np.ndarray, "height width colors"]  # the image; the model's input is all of it, resized
    grid: tuple[int, int]  # rows and columns of the feature grid

    def to_dict(self) -> dict[str, Any]:
        """Return the caption and its attention as plain data, as `qkv caption --json` prints them."""
        fields: dict[str, Any] = {"picture": self.source, "text": self.text, "score": round(self.score, 6)}
        if self.attention:
            attention = self.attention[0]
            fields["tokens"] = list(attention.rows)
            fields["grid"] = list(self.grid)
            fields["attention"] = [[round(float(weight), 6) for weight in row] for row in attention.average]
        return fields

    @property
    def details(self) -> list[str]:
        height, width, _ = self.pixels.shape
        return [f"picture {width} x {height}", *super().details]


@dataclass(frozen=True)
class NamedImage:
    """An image to caption or to classify: its name, and its pixels or features."""

    name: str
    image: Shaped[np.ndarray, "channels height width"]
    original: UInt8[np.ndarray, "rows columns colors"] | None = None  # before it was resized, if known

    @property
    def pixels(self) -> UInt8[np.ndarray, "height width colors"]:
        """Pixels for display; blank for features of an unknown image."""
        if self.original is not None:
            return self.original
        if self.image.dtype != np.uint8:
            return np.full((*self.image.shape[1:], 3), BLANK, dtype=np.uint8)
        return as_rgb(self.image)


class Captioner(DecoderPipeline):
    """A captioning model with its tokenizer: `Captioner("runs/shapes-attend-0")("scene.png").text`."""

    task_description: ClassVar = "image captioning"
    model_class: ClassVar = ShowAttendTell
    input_types: ClassVar = (str, Path, Image.Image)  # or an array
    model: ShowAttendTell

    def setup(self) -> None:
        self.special_tokens = DecoderTokens.from_tokenizer(self.tokenizer, self.model.config)

    @staticmethod
    def as_input(value: Any) -> Any:
        return image_of_array(value) if isinstance(value, np.ndarray) else value

    @one_or_many
    def __call__(
        self,
        images: Sequence[ImageSource],
        *,
        num_beams: int = 1,
        num_return_sequences: int = 1,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        batch_size: int | None = None,
    ) -> list[Caption]:
        """Caption one image or several, or each entry of a file of features.

            qkv.Captioner("runs/shapes-attend-0")(["scene.png", "other.png"], num_beams=4)

        Args:
            images: A path, an image of PIL or an array of uint8 [height, width] or [height, width, 3], or several; or a
                .safetensors file of features.
            num_beams: Number of beams; 1 is greedy search.
            num_return_sequences: Number of results for each input, at most `num_beams` unless they are sampled; with
                more than 1, the result for each input is a list, best first.
            length_penalty: Scores are log p / length ** length_penalty; greater values favor longer outputs.
            max_new_tokens: Maximum number of new tokens; by default the maximum length of the model.
            sampling: Sample instead of searching: `qkv.generation.Sampling(temperature=0.7, top_k=50, seed=1)`.
            batch_size: Number of images processed at a time; by default as many as fit in memory.

        Returns:
            One `Caption` for each image, with `text`, `score` and `attention`.
        """
        config = GenerationConfig(
            num_beams=num_beams,
            num_return_sequences=num_return_sequences,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
        )
        named = zip(images, short_names(images), strict=True)
        loaded = [image for source, name in named for image in self._load(source, name, len(images))]
        captions: list[list[Caption]] = []
        lengths = [max(num_beams, num_return_sequences)] * len(loaded)
        for rows in batch_by_length(lengths, inference_batch_size(batch_size, MAX_HYPOTHESES)):
            captions += self._caption([loaded[row] for row in rows], config)
        results: list[Any] = captions
        return results if num_return_sequences > 1 else [best for (best,) in results]

    def _caption(self, images: Sequence[NamedImage], config: GenerationConfig) -> list[list[Caption]]:
        arrays = torch.from_numpy(np.stack([image.image for image in images]))
        pixels = as_model_input(arrays.to(self.model.device))
        hypotheses = self.decode(pixels, config)
        repeats = torch.tensor([len(row) for row in hypotheses], device=pixels.device)
        maps = iter(self.attention(pixels.repeat_interleave(repeats, dim=0), [*chain.from_iterable(hypotheses)]))
        return [
            [
                Caption(
                    image.name,
                    self.tokenizer.decode(best.tokens),
                    best.score,
                    next(maps),
                    pixels=image.pixels,
                    grid=self.model.config.grid,
                )
                for best in row
            ]
            for image, row in zip(images, hypotheses, strict=True)
        ]

    @torch.inference_mode()
    def decode(
        self, images: Float[Tensor, "batch channels height width"], config: GenerationConfig = GREEDY
    ) -> list[list[Hypothesis]]:
        """Return the best captions of each image, or samples."""
        limit = self.model.config.max_length - 1  # leave room for the end token
        limit = min(limit, config.max_new_tokens or limit)
        begin, end, suppressed = self.special_tokens.begin, self.special_tokens.end, self.special_tokens.suppressed
        if self.engine is not None:
            requests = [
                Request([begin], limit, config.min_new_tokens, source=image, row_id=number)
                for number, image in enumerate(images)
            ]
            results = dict(self.engine.decode(requests, Tokens(end, suppressed), config))
            return [results[index] for index in range(len(images))]
        constraints = DecodingConstraints(
            batch=len(images),
            begin=begin,
            end=end,
            max_new_tokens=limit,
            min_new_tokens=config.min_new_tokens,
            suppress_tokens=suppressed,
        )
        with self.simple_search():
            return generate(self.model, self.model.init_state(self.model.encode(images)), constraints, config)

    @torch.inference_mode()
    def attention(
        self, images: Float[Tensor, "batch channels height width"], hypotheses: Sequence[Hypothesis]
    ) -> list[AttentionMaps]:
        """Attention maps of each caption, from one more forward pass; empty for a model without attention."""
        layers = self.model.alignment_layers
        if not layers:
            return [()] * len(hypotheses)
        width = max(len(hypothesis.tokens) for hypothesis in hypotheses) + 1
        target_in = [
            [
                self.special_tokens.begin,
                *hypothesis.tokens,
                *[self.special_tokens.end] * (width - 1 - len(hypothesis.tokens)),
            ]
            for hypothesis in hypotheses
        ]
        with watch(self.model, layers=list(layers)) as records:
            self.model(images, torch.tensor(target_in, device=images.device))
        columns = region_names(self.model.config.grid)
        pieces = [tuple(self.tokenizer.piece(token) for token in hypothesis.tokens) for hypothesis in hypotheses]
        weights = {name: records[name].weights.float().cpu().numpy() for name in layers}
        return [
            tuple(
                AttentionMap(name, rows, columns, layer_weights[number, :, : len(rows)])
                for name, layer_weights in weights.items()
            )
            for number, rows in enumerate(pieces)
        ]

    def load_image(self, source: ImageSource) -> NamedImage:
        """Read an image, or the first entry of a file of features."""
        return next(self._load(source, Path(image_name(source)).name))

    def _load(self, source: ImageSource, name: str, count: int = 1) -> Iterator[NamedImage]:
        """Yield an image with this name, one of `count` kept for display, or the entries of a file of features."""
        config = self.model.config
        expected = (config.channels, config.height, config.width)
        path = Path(image_name(source))
        if isinstance(source, Image.Image) or path.suffix != FEATURES:
            if config.encoder.name == "features":
                yield self._load_photograph(source, name, count)
                return
            yield NamedImage(name, *read_image_for_display(source, *expected, count))
            return
        entries = feature_names(path)
        for entry, grid in zip(entries, read_features(path, entries), strict=True):
            if config.encoder.name != "features" or grid.shape != expected:
                what = "features" if config.encoder.name == "features" else "images"
                raise InputError(f"{path}: {entry} is {list(grid.shape)}, but this model takes {what} {list(expected)}")
            yield NamedImage(entry, grid)

    def _load_photograph(self, source: ImageSource, name: str, count: int) -> NamedImage:
        """Compute the features of a photograph with the backbone of the training data."""
        config, extractor, path = self.model.config, self.extractor, Path(image_name(source))
        expected = [config.channels, config.height, config.width]
        if extractor is None:
            raise InputError(f"{path}: this model takes features {expected}, not images: pass a {FEATURES} file")
        height, width = (side * extractor.backbone.stride for side in expected[1:])
        photograph = load_image(source)
        (features,) = extractor(np.stack([resize_image(photograph, height, width)]))
        if list(features.shape) != expected:
            raise InputError(f"{path}: {extractor.name} has features {list(features.shape)}, but this model {expected}")
        return NamedImage(name, features, pixels_for_display(photograph, count))

    @cached_property
    def extractor(self) -> FeatureExtractor | None:
        """The backbone of a model of features; None if it is not known."""
        return FeatureExtractor(self.model.config.backbone) if self.model.config.backbone else None

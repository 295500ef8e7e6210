"""Explainable predictions of decoders: source tokens of a translation, regions of a captioned image."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from qkv.attention.layers import attention_layers
from qkv.datasets.batching import EncodedPair, collate
from qkv.errors import InputError
from qkv.interpret.explainable import NO_UNIT, Explainable
from qkv.pipelines.captioner import Captioner, NamedImage
from qkv.pipelines.inputs.image_preprocessing import as_model_input
from qkv.pipelines.inputs.tree_inputs import reads_trees
from qkv.pipelines.translator import Translator
from qkv.types import Bool, Float, Tensor


class Decoded(Explainable):
    """A generated text; its outputs are the tokens, each given those before it."""

    def explain_tokens(self, text: str, tokens: list[int], piece: Callable[[int], str], target: str | None) -> None:
        """Explain all tokens of the text, or one by its index or text."""
        if not tokens:
            raise InputError("the model generates an empty text: there is no output to explain")
        self.tokens = tokens
        self.explain_outputs(text, [piece(token) for token in tokens], tokens)
        if target is not None:
            self.select([self._find(target)])

    def _find(self, target: str) -> int:
        names = [output.strip() for output in self.outputs]
        if target.isdecimal() and len(target) < 10 and int(target) < len(names):
            return int(target)  # before tokens, which may be digits
        if target.strip() in names:
            return names.index(target.strip())
        raise InputError(
            f"there is no output token {target!r}: pass one of {' '.join(names)}, or its index, 0 to {len(names) - 1}"
        )

    def query_row(self, output: int) -> int:
        return output


class Translation(Decoded):
    """A translation; its units are the source tokens, without special tokens such as </s>."""

    def __init__(self, translator: Translator, text: str, target: str | None = None) -> None:
        model, tokenizer = translator.model, translator.tokenizer
        if reads_trees(model.config) or getattr(model, "pointer", None) is not None:
            raise InputError(f"{translator.name}: qkv explain does not support models with trees or pointers")
        source, best = translator.decode_one(text)
        self.tokenizer = tokenizer
        self.ids, self.special_tokens = source.encoding.ids, translator.special_tokens
        self.unknown = tokenizer.source.special_tokens.unk or 0
        inside = torch.tensor([begin < end for begin, end in source.encoding.offsets])
        pieces = zip(source.encoding.pieces, inside.tolist(), strict=True)
        units = tuple(piece for piece, is_unit in pieces if is_unit)
        super().__init__(model, units, torch.where(inside, inside.cumsum(0) - 1, NO_UNIT))
        self.layers = model.alignment_layers
        self.self_layers = tuple(name for name in attention_layers(model) if name.startswith("encoder"))
        self.explain_tokens(tokenizer.target.decode(best.tokens), [*best.tokens], tokenizer.target.piece, target)

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants outputs vocabulary"]:
        """Return the logits of each output after those before it, without the source tokens that are not kept."""
        owner = self.owner.tolist()
        rows = [
            [token for token, unit in zip(self.ids, owner, strict=True) if unit == NO_UNIT or kept[unit]]
            for kept in keep.tolist()
        ]
        pairs = [EncodedPair(row or [self.unknown], self.tokens) for row in rows]
        batch = collate(pairs, begin=self.special_tokens.begin, end=self.special_tokens.end).to(self.model.device)
        return self.model(batch.source, batch.target_in, batch.source_lengths)[:, self.rows]

    def to_input_units(self, values: Float[Tensor, "outputs positions"]) -> Float[Tensor, "outputs units"]:
        """Sum values of the embeddings by unit; an RNN encoder can reverse its source."""
        return self.to_units(values.flip(1) if getattr(self.model.encoder, "reverse", False) else values)


class ImageCaption(Decoded):
    """A caption; its units are the regions of the image that the model attends to, named row,column."""

    unit = "region"

    def __init__(self, captioner: Captioner, image: str | Path | NamedImage, target: str | None = None) -> None:
        config = captioner.model.config
        picture = image if isinstance(image, NamedImage) else captioner.load_image(image)
        self.pixels: UInt8[np.ndarray, "height width colors"] = picture.pixels
        self.image = as_model_input(torch.from_numpy(picture.image.copy())[None].to(captioner.model.device)).float()
        self.begin, self.grid = captioner.special_tokens.begin, config.grid
        rows, columns = config.grid
        units = tuple(f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1))
        super().__init__(captioner.model, units, torch.arange(len(units)))
        self.layers = self.model.alignment_layers
        ((best, *_),) = captioner.decode(self.image)
        tokenizer = captioner.tokenizer
        self.explain_tokens(tokenizer.decode(best.tokens), [*best.tokens], tokenizer.piece, target)

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants outputs vocabulary"]:
        """Return the logits of each output after those before it; regions that are not kept have the mean color."""
        rows, columns = self.model.config.grid
        height, width = self.image.shape[2] // rows, self.image.shape[3] // columns
        visible = keep.view(-1, 1, rows, columns).repeat_interleave(height, 2).repeat_interleave(width, 3)
        return self._decode(torch.where(visible.to(self.image.device), self.image, self.baseline))

    def _decode(self, images: Float[Tensor, "variants channels height width"]) -> Tensor:
        tokens = torch.tensor([[self.begin, *self.tokens[:-1]]], device=images.device).expand(len(images), -1)
        return self.model(images, tokens)[:, self.rows]

    @property
    def baseline(self) -> Float[Tensor, "1 channels 1 1"]:
        """The mean of each channel."""
        return self.image.mean(dim=(2, 3), keepdim=True)

    def input_gradients(self, scales: Float[Tensor, "steps"]) -> tuple[Tensor, Tensor]:
        """Return x - x' and the gradients by x, the pixels; x' is the mean color (see `Explainable`)."""
        difference = self.image - self.baseline
        x = (self.baseline + scales.to(self.image.device)[:, None, None, None] * difference).requires_grad_()
        with torch.enable_grad():
            log_p = self.chosen(self._decode(x))
        gradients = self._gradients(log_p, x)[:, 0]
        return self._by_region(difference)[0], self._by_region(gradients)

    def _by_region(
        self, images: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images regions features"]:
        """Divide images into their regions, row by row."""
        rows, columns = self.model.config.grid
        parts = images.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))  # [images, channels, rows, h, columns, w]
        return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

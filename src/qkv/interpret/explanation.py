"""`qkv.explain`: which units of an input explain a prediction, by several attribution methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from qkv.errors import InputError
from qkv.hub import load
from qkv.interpret.attribution import AttributionOptions, attribute, check_methods
from qkv.interpret.explainable import Explainable
from qkv.interpret.explainable_decoders import NextToken, Translation
from qkv.interpret.explainable_images import ImageCaption, ImageClassification
from qkv.interpret.explainable_texts import DocumentClassification, TextClassification
from qkv.interpret.faithfulness import Faithfulness, measure_faithfulness
from qkv.models.han import HAN
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.models.vit import ViT
from qkv.nn.interfaces import EncoderDecoder, LanguageModel, TextEncoder
from qkv.pipelines.captioner import Captioner, NamedImage
from qkv.pipelines.classifier import Classifier
from qkv.pipelines.generator import Generator
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.pipelines.inputs.image_preprocessing import pixel_scale
from qkv.pipelines.pipeline import ModelSource, require_text
from qkv.pipelines.translator import Translator
from qkv.registry import names_keywords
from qkv.runtime.device import pick_device
from qkv.runtime.notebook import Drawable
from qkv.runtime.text import with_article
from qkv.types import Tensor

SUPPORTED = "a classifier of texts or images, a translator, a language model or a captioner"
UNITS = ("word", "sentence")  # of a hierarchical attention network
MAX_SHOWN = 3  # units in the repr

ExplainedPipeline = Classifier | Translator | Generator | Captioner | ImageClassifier


@dataclass(frozen=True, eq=False)
class Explanation(Drawable):
    """Scores of the units of an input: `explanation.scores` is [units], or [outputs, units] for a generated text."""

    method: str
    units: tuple[str, ...]  # display text of each token, word, sentence or region
    outputs: tuple[str, ...]  # explained label, or tokens of the generated text
    all_scores: Float[np.ndarray, "outputs units"] = field(repr=False)
    prediction: str  # the predicted label, or the whole generated text
    probabilities: tuple[float, ...]  # of each output
    explained: Explainable = field(repr=False)

    @property
    def scores(self) -> Float[np.ndarray, "*outputs units"]:
        """Score of each unit; one row per output if there are several."""
        return self.all_scores[0] if len(self.outputs) == 1 else self.all_scores

    @cached_property
    def faithfulness(self) -> list[Faithfulness]:
        """Comprehensiveness and sufficiency of the scores of each output, computed on first access."""
        return measure_faithfulness(self.explained, torch.from_numpy(self.all_scores))

    def top(self, count: int, output: int = 0) -> list[tuple[str, float]]:
        """Return the units with the greatest scores for an output."""
        row = self.all_scores[output]
        return [(self.units[number], float(row[number])) for number in np.argsort(-row, kind="stable")[:count]]

    def __repr__(self) -> str:
        best = ", ".join(f"{unit.strip()} {score:.2f}" for unit, score in self.top(MAX_SHOWN))
        more = f" and {len(self.outputs) - 1} more outputs" if len(self.outputs) > 1 else ""
        return f"Explanation({self.method}: {self.outputs[0].strip()!r} from {best}, ...{more})"


@names_keywords
def explain(
    model: ModelSource,
    source: str | Path,
    method: str = "attention",
    *,
    target: str | None = None,
    unit: str | None = None,
    layers: Literal["last", "all"] = "last",
    steps: int = 32,
    seed: int = 0,
    device: str | torch.device = "auto",
) -> Explanation:
    """Explain the prediction of a model for a text, or for the path of an image.

        qkv.explain("runs/polarity-bert-0", "A fine film.", "gradient").top(3)

    Args:
        model: A classifier of texts or images, a translator, a language model or a captioner: a run, a folder, a name
            or a network.
        source: The input, a text, the prompt of a language model, or the path of an image.
        method: "attention", "rollout", "value_weighted", "gradient", "integrated_gradients", "leave_one_out" or
            "random".
        target: Label or next token to explain, by default the predicted one; or a token of the output or its index, by
            default all.
        unit: "word" or "sentence", for a hierarchical attention network.
        layers: Whether "attention" and "value_weighted" take the "last" layer, or the average over "all" layers.
        steps: Number of steps of integrated gradients.
        seed: Seed of the method "random".
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".

    Returns:
        An `Explanation`, with the score of each unit of the input in `scores`.
    """
    check_methods([method])
    if isinstance(model, Tensor):
        raise InputError("explain takes a model and an input: qkv.attention.explain takes the arguments of qkv.attend")
    if not isinstance(source, str | Path):
        raise InputError(f"source must be a text, or the path of an image, not {type(source).__name__}")
    prediction = build_explainable(build_pipeline(model, device), source, target, unit)
    return explain_prediction(prediction, method, AttributionOptions(layers, steps, seed))


def explain_prediction(prediction: Explainable, method: str, options: AttributionOptions | None = None) -> Explanation:
    """Explain a prediction by one method."""
    scores = attribute(prediction, method, options)
    probabilities = prediction.log_probs(prediction.everything())[0].exp().tolist()
    return Explanation(
        method,
        prediction.units,
        prediction.outputs,
        scores.numpy(),
        prediction.text,
        tuple(probabilities),
        prediction,
    )


def build_pipeline(model: ModelSource, device: str | torch.device = "auto") -> ExplainedPipeline:
    """Return the pipeline of a model that can be explained."""
    # Gradients need floating-point weights.
    network: Any = model if isinstance(model, nn.Module) else load(model, pick_device(device), dequantize=True)
    if isinstance(network, ShowAttendTell):
        return Captioner(network)
    if isinstance(network, ViT):
        classifier = ImageClassifier(network)
        classifier.scale = pixel_scale(model, network.config.channels)
        return classifier
    if isinstance(network, LanguageModel):
        return Generator(network, use_engine=False)
    if isinstance(network, EncoderDecoder) and network.log_mel is None:
        return Translator(network)
    if isinstance(network, TextEncoder) and network.config.head == "classifier":
        return Classifier(network)
    name = type(network).__name__
    head = getattr(getattr(network, "config", None), "head", None)
    kind = name if head is None else f"{name} with the head {head}"
    which = kind if isinstance(model, nn.Module) else f"{model} is {with_article(kind)}, which"
    raise InputError(f"{which} cannot be explained: pass {SUPPORTED}")


def build_explainable(
    pipeline: ExplainedPipeline, source: str | Path | NamedImage, target: str | None = None, unit: str | None = None
) -> Explainable:
    """Run a model on an input and return its prediction."""
    hierarchical = isinstance(pipeline.model, HAN)
    if unit is not None and (not hierarchical or unit not in UNITS):
        raise InputError(f"unit must be {' or '.join(UNITS)}, and only for a hierarchical model, not {unit!r}")
    image = source if isinstance(source, NamedImage) else Path(source)
    if isinstance(pipeline, Captioner):
        return ImageCaption(pipeline, image, target)
    if isinstance(pipeline, ImageClassifier):
        return ImageClassification(pipeline, image, target)
    require_text([str(source)])
    if isinstance(pipeline, Generator):
        return NextToken(pipeline, str(source), target)
    if isinstance(pipeline, Translator):
        return Translation(pipeline, str(source), target)
    if hierarchical:
        return DocumentClassification(pipeline, str(source), target, unit or UNITS[0])
    return TextClassification(pipeline, str(source), target)


def explain_all(
    prediction: Explainable, methods: Sequence[str], options: AttributionOptions | None = None
) -> list[Explanation]:
    """Explain a prediction by several methods."""
    return [explain_prediction(prediction, method, options) for method in methods]

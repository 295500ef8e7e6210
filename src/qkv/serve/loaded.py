"""The models of a server: which endpoints they have, and the threads that run them."""

import time
from collections import deque
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.generation.beam_batching import BeamDecoder
from qkv.generation.continuous_batching import TokenDecoder
from qkv.generation.row_runner import RowRunner
from qkv.hub import load
from qkv.hub.model_folder import named_folder
from qkv.hub.pretrained import recorded_example
from qkv.models.memory.memory_network import MemoryNetwork
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.models.vit import ViT
from qkv.nn.interfaces import EncoderDecoder, LanguageModel, TextEncoder
from qkv.pipelines.captioner import Captioner
from qkv.pipelines.classifier import Classifier
from qkv.pipelines.embedder import Embedder
from qkv.pipelines.generator import Generator
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.pipelines.mask_filler import MaskFiller
from qkv.pipelines.question_answerer import QuestionAnswerer
from qkv.pipelines.story_answerer import StoryAnswerer
from qkv.pipelines.tagger import Tagger
from qkv.pipelines.translator import Translator
from qkv.runtime.device import pick_device
from qkv.runtime.text import printable, with_article
from qkv.serve.attention import attention_function
from qkv.serve.decoding import BeamBatch, SearchOptions, TokenBatch
from qkv.serve.errors import RequestError
from qkv.serve.metrics import Metrics
from qkv.serve.settings import ServeSettings
from qkv.serve.worker import MAIN, Batch, Worker

HEADS = {"classifier": Classifier, "tagger": Tagger, "span": QuestionAnswerer}  # pipelines of the heads of encoders
ENDPOINTS: dict[type[Any], str] = {
    Generator: "/v1/completions",
    Translator: "/translate",
    Classifier: "/classify",
    ImageClassifier: "/classify",
    Tagger: "/tag",
    QuestionAnswerer: "/answer",
    StoryAnswerer: "/answer",
    MaskFiller: "/fill",
    Embedder: "/v1/embeddings",
    Captioner: "/caption",
}


class LoadedModel:
    """A model with its pipelines, by endpoint, and the thread that runs them."""

    def __init__(self, name: str, source: str, settings: ServeSettings, metrics: Metrics) -> None:
        self.name, self.settings, self._metrics, self.loaded_at = name, settings, metrics, int(time.time())
        network, pipelines = _load_pipelines(source, settings)
        self.network: Any = network
        self.pipelines: dict[str, Any] = {ENDPOINTS[type(pipeline)]: pipeline for pipeline in pipelines}
        if (attention := attention_function(network, pipelines)) is not None:
            self.pipelines["/attention"] = attention
        if not self.pipelines:
            kind = with_article(type(network).__name__)
            raise InputError(f"{source}: {kind} cannot be served: no endpoint takes its inputs")
        self.kind = type(network).__name__
        self.example_input: str = recorded_example(named_folder(source)) or pipelines[0].example_input
        self.worker = Worker(
            name, self._make_batch, metrics, max_batch=settings.max_batch, max_queue=settings.max_queue
        )

    @property
    def batch_size(self) -> int | None:
        """Size of the batches of an encoder: 1 if a result would depend on the batch, else None, for any."""
        invariant = getattr(self.network, "batch_invariant", False) or self.settings.batch_all
        return None if invariant or next(self.network.parameters()).device.type != "cpu" else 1

    def _make_batch(self, key: Hashable) -> Batch:
        """Return an empty decoding batch: with this search, or of the main key."""
        count = self._metrics.new_tokens.labels(self.name).inc
        if (generator := self.pipelines.get("/v1/completions")) is not None:
            return TokenBatch(self._generation_batch(generator), count)
        translator = self.pipelines["/translate"]
        length = min(translator.model.config.max_length, self.settings.max_tokens)
        search = SearchOptions() if key == MAIN else key
        assert isinstance(search, SearchOptions)
        beams = search.num_beams
        config = GenerationConfig(num_beams=beams, num_return_sequences=beams, length_penalty=search.length_penalty)
        decoder = translator.engine.open_batch(
            translator.decoding_tokens,
            rows=self._sequences(translator.engine, beams, length + 2, length) * beams,
            capacity=length + 2,
            source_capacity=length,
            config=config,
        )
        return BeamBatch(decoder) if isinstance(decoder, BeamDecoder) else TokenBatch(decoder, count)

    def _generation_batch(self, generator: Generator) -> TokenDecoder:
        capacity = min(generator.model.max_length or self.settings.max_tokens, self.settings.max_tokens) + 2
        tokens, engine = generator.decoding_tokens, generator.engine
        if engine is None:
            runner = RowRunner(generator.model, self.settings.max_batch)
            return TokenDecoder(tokens.constrain(runner), deque(), tokens, GenerationConfig())
        decoder = engine.open_batch(tokens, rows=self._sequences(engine, 1, capacity, 0), capacity=capacity)
        assert isinstance(decoder, TokenDecoder)
        return decoder

    def _sequences(self, engine: Any, beams: int, capacity: int, source_capacity: int) -> int:
        """Return how many sequences are decoded at once."""
        invariant = engine.factory.batch_invariant or engine.factory.device.type != "cpu"
        if not invariant and not self.settings.batch_all:
            return 1
        fitting: int = engine.fitting(beams, capacity, source_capacity)
        return min(self.settings.max_batch, fitting)

    def describe(self) -> dict[str, Any]:
        """Return the name, class and endpoints of the model."""
        return {"id": self.name, "kind": self.kind, "endpoints": sorted(self.pipelines)}


def _load_pipelines(source: str, settings: ServeSettings) -> tuple[Any, list[Any]]:
    """Load a model; return it with all pipelines that can run it."""
    network = load(source, pick_device(settings.device))
    dtype = settings.dtype
    if isinstance(network, LanguageModel):
        return network, [Generator(network, dtype=dtype)]
    if isinstance(network, EncoderDecoder):
        return network, [Translator(network, dtype=dtype)]
    if isinstance(network, ShowAttendTell):
        return network, [Captioner(network, dtype=dtype)]
    if isinstance(network, MemoryNetwork):
        return network, [StoryAnswerer(network)]
    if isinstance(network, ViT):
        classifier = ImageClassifier(source, device=settings.device) if network.config.classes else None
        return (network, []) if classifier is None else (classifier.model, [classifier])
    if not isinstance(network, TextEncoder):
        return network, []
    pipelines: list[Any] = []
    for make in (HEADS.get(network.config.head), MaskFiller, Embedder):
        try:
            pipelines += [] if make is None else [make(network)]
        except InputError:
            if make is Embedder:  # every text encoder has one
                raise
    return network, pipelines


class ModelPool:
    """All models of a server, by name."""

    def __init__(self, sources: Iterable[str], settings: ServeSettings, metrics: Metrics) -> None:
        """Load models: folders, or names of the Hub, with `NAME=` before those that are not named by their folder."""
        self.models: dict[str, LoadedModel] = {}
        named = [_split_name(source) for source in sources]
        if not named:
            raise InputError("no model to serve: pass at least one")
        for number, (name, source) in enumerate(named):
            if name in [other for other, _ in named[:number]]:
                raise InputError(f"two models are named {name!r}: write NAME={source} with another name")
        for name, source in named:
            self.models[name] = LoadedModel(name, source, settings, metrics)

    def get(self, name: str | None, endpoint: str) -> tuple[LoadedModel, Any]:
        """Return a model and its pipeline for an endpoint; without a name, the only model that has the endpoint."""
        if name is None:
            fitting = self.by_endpoint().get(endpoint, [])
            if not fitting:
                raise RequestError(400, f"no loaded model has {endpoint}; loaded: {', '.join(self.models)}")
            if len(fitting) > 1:
                choice = ", ".join(fitting)
                raise RequestError(400, f"model: name one of the models with {endpoint}: {choice}", param="model")
            (name,) = fitting
        model = self.find(name)
        if endpoint not in model.pipelines:
            endpoints = ", ".join(sorted(model.pipelines))
            raise RequestError(
                400, f"model {name!r} ({model.kind}) has no {endpoint}; available endpoints: {endpoints}", param="model"
            )
        return model, model.pipelines[endpoint]

    def by_endpoint(self) -> dict[str, list[str]]:
        """Return the names of the models of each endpoint."""
        names: dict[str, list[str]] = {}
        for model in self.models.values():
            for endpoint in model.pipelines:
                names.setdefault(endpoint, []).append(model.name)
        return names

    def find(self, name: str) -> LoadedModel:
        """Return the model with a name."""
        if name not in self.models:
            raise RequestError(
                404,
                f"model {printable(repr(name), 100)} is not loaded; loaded: {', '.join(self.models)}",
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    @property
    def ready(self) -> bool:
        """Whether all models accept requests."""
        return all(model.worker.alive for model in self.models.values())

    def close(self) -> None:
        """Finish all accepted requests."""
        for model in self.models.values():
            model.worker.close()


def _split_name(source: str) -> tuple[str, str]:
    """Return the name under which a model is served, and where it is."""
    name, separator, path = source.partition("=")
    if separator and name and path and not Path(source).exists():
        return name, path
    return Path(source).name or source, source

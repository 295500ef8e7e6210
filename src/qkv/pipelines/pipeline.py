"""Base classes of the pipelines: a model with its tokenizer, raw input in, answer out."""

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, overload

import torch
from torch import nn

from qkv.errors import InputError, TruncationWarning, Unsupported
from qkv.generation import DType, Engine, EngineCache, PackedWeights
from qkv.generation.engine import decoding_dtype
from qkv.hub import load_as
from qkv.hub.model_folder import model_name
from qkv.nn.interfaces import TextEncoder
from qkv.nn.quantized import is_quantized
from qkv.pipelines.inputs.text_inputs import AnyExampleEncoder, build_example_encoder
from qkv.registry import check_keywords, keyword_names, names_keywords
from qkv.runtime.device import pick_device
from qkv.runtime.notebook import Results, quoted
from qkv.runtime.text import with_article
from qkv.tokenizers import Tokenizer

ModelSource = str | os.PathLike[str] | nn.Module  # a run, a folder or the name of a model, or a network
HINTS = {  # for arguments of pipelines of transformers
    "max_length": "max_new_tokens",
    "beam_size": "num_beams",
    "n_best": "num_return_sequences",
    "do_sample": "temperature",
    **{name: f"sampling=Sampling({name}=...)" for name in ("temperature", "top_k", "top_p")},
}
Input = TypeVar("Input")
InputOf = TypeVar("InputOf", contravariant=True)
Output = TypeVar("Output")
Options = ParamSpec("Options")


class Pipeline:
    """A model with its tokenizer: call it with one input for one answer, or with a list for a list of answers."""

    task_description: ClassVar[str]
    required: ClassVar[str] = ""  # the models it can run, in messages; default: those of `model_class`
    model_class: ClassVar[type[Any]]  # base class of the models that the pipeline can run
    input_types: ClassVar[tuple[type, ...]] = (str,)  # of one input
    example_input: ClassVar[str] = "The cat sat on the mat."  # of pipelines of texts
    model: Any

    @names_keywords
    def __init__(
        self, model: ModelSource, tokenizer: Tokenizer | None = None, device: str | torch.device = "auto"
    ) -> None:
        """Load a model and its tokenizer.

        Args:
            model: A training run, a saved model, the name of a model (`qkv models`, or "owner/name" on the Hugging Face
                Hub), or a network.
            tokenizer: Replaces the tokenizer saved with the model.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        """
        self.name = model_name(model, network=True)
        if not isinstance(model, nn.Module):
            network = load_as(self.model_class, self.name, pick_device(device), required=self.required)
        else:
            network = model if device == "auto" else model.to(pick_device(device))
            if not isinstance(network, self.model_class):
                kind = getattr(network, "kind_description", with_article(self.name))
                required = with_article(self.model_class.__name__)
                raise InputError(f"{self.name}: {self.task_description} requires {required}, not {kind}")
        self.model = network.eval()
        self._tokenizer = network.tokenizer if tokenizer is None else tokenizer
        self.setup()

    def setup(self) -> None:
        """Check the model and prepare what depends on it; called when a pipeline is made."""

    @staticmethod
    def as_input(value: Any) -> Any:
        """Return one input for a value, such as an image for an array; values of other types are returned as such."""
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({quoted(self.name)}: {describe_network(self.model)})"

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        if self._tokenizer is None:
            raise InputError(f"{self.name}: no tokenizer was found next to the weights; pass one")
        return self._tokenizer


class DecoderPipeline(Pipeline):
    """A model that generates text.

    It is decoded by the engine of `qkv.generation` where that supports the model, else by the simple searches.
    """

    @names_keywords
    def __init__(
        self,
        model: ModelSource,
        tokenizer: Tokenizer | None = None,
        device: str | torch.device = "auto",
        dtype: DType = "auto",
        *,
        use_engine: bool = True,
    ) -> None:
        """Load a model and its tokenizer.

        Args:
            model: A training run, a saved model, the name of a model (`qkv models`, or "owner/name" on the Hugging Face
                Hub), or a network.
            tokenizer: Replaces the tokenizer saved with the model.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
            dtype: Type of the weights in decoding: "float32", "bfloat16", "int8", or "auto" for that of the model.
            use_engine: Decode with the engine of `qkv.generation` where it supports the model; without it, a short job
                on a GPU need not wait for kernels to be compiled.
        """
        dtype = decoding_dtype(dtype)
        super().__init__(model, tokenizer, device)
        self._engine = EngineCache(self.model, dtype, enabled=use_engine)
        self._packed: PackedWeights | None = None
        if self.engine is None and dtype in ("bfloat16", "int8") and not is_quantized(self.model):
            self._packed = self._pack(dtype)

    @property
    def engine(self) -> Engine | None:
        """The decoding engine, or None if the model is decoded by the simple searches."""
        return self._engine.get()

    def simple_search(self) -> AbstractContextManager[object]:
        """Return the context in which the simple searches run: that of the packed weights, if there are any."""
        if (engine := self.engine) is not None:
            return engine.context
        return nullcontext() if self._packed is None else self._packed

    @property
    def decoding(self) -> str:
        """The implementation that decodes the model, and the reason if it is not the engine."""
        if (engine := self.engine) is not None:
            return engine.description
        weights = "" if self._packed is None else f", {self._packed.dtype} weights"
        return f"PyTorch{weights} (the engine does not support {self._engine.reason})"

    def _pack(self, dtype: Literal["bfloat16", "int8"]) -> PackedWeights | None:
        """Pack the weights for the simple searches; without kernels, bfloat16 is left to PyTorch."""
        try:
            if self.model.device.type != "cpu":
                raise Unsupported("packed weights", f"the device {self.model.device}")
            return PackedWeights(self.model, dtype)
        except Unsupported as error:
            if dtype == "int8":
                raise InputError(f"{self.name}: int8 decoding does not support {error.reason}") from None
        self.model = self.model.to(torch.bfloat16)
        return None


class TextPipeline(Pipeline):
    """A text encoder with its tokenizer."""

    model_class: ClassVar = TextEncoder
    heads: ClassVar[tuple[str, ...]] = ()  # heads that the pipeline supports; empty: any head, or none
    model: TextEncoder

    def setup(self) -> None:
        head = self.model.config.head
        if self.heads and head not in self.heads:
            raise InputError(
                f"{self.name}: {self.task_description} requires a model with the head {' or '.join(self.heads)}, "
                f"but this one has {'no head' if head is None else f'the head {head}'}"
            )
        try:
            self.encoder: AnyExampleEncoder = build_example_encoder(self._tokenizer, self.model.config)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a text, without special tokens."""
        return self.encoder.max_tokens(self.model.config.max_length)

    @property
    def unit(self) -> str:
        """Unit that `max_tokens` counts: "tokens" or "sentences"."""
        return self.encoder.unit

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """The 1-based numbers of the texts that are truncated to the model's maximum length."""
        encoded = self.encoder.fresh_copy().encode(texts)
        return [number for number, ids in enumerate(encoded, start=1) if len(ids) > self.max_tokens]

    def warn_truncated(self, numbers: Sequence[int]) -> None:
        """Warn that these texts were truncated, given their 1-based numbers."""
        if numbers:
            message = truncation_note(numbers, self.max_tokens, self.unit)
            warnings.warn(message, TruncationWarning, stacklevel=4)  # the call of the pipeline


def truncation_note(numbers: Sequence[int], max_length: int, unit: str) -> str:
    """Return a sentence on the inputs that were truncated, given their 1-based numbers."""
    first = f"input {numbers[0]}"
    if len(numbers) == 1:
        return f"{first} is truncated to the model's maximum of {max_length:,} {unit}"
    return f"{len(numbers):,} inputs are truncated to the model's maximum of {max_length:,} {unit}, first: {first}"


class OneOrMany(Protocol[InputOf, Options, Output]):
    """One input gives one output, a sequence of inputs a list of outputs."""

    @overload
    def __call__(self, inputs: InputOf, /, *args: Options.args, **options: Options.kwargs) -> Output: ...

    @overload
    def __call__(
        self, inputs: Iterable[InputOf], /, *args: Options.args, **options: Options.kwargs
    ) -> list[Output]: ...


class OneOrManyMethod(Protocol[InputOf, Options, Output]):
    """A method whose bound form is a `OneOrMany`."""

    def __get__(self, pipeline: Any, owner: Any) -> OneOrMany[InputOf, Options, Output]: ...


def one_or_many(
    method: Callable[Concatenate[Any, Sequence[Input], Options], list[Output]],
) -> OneOrManyMethod[Input, Options, Output]:
    """Decorate a method from a list of inputs to a list of outputs so that it also takes one input.

    Several inputs are a list or another iterable, and the answers are `Results`. The first parameter is named as in the
    method.
    """
    names = keyword_names(method)
    first = names[0]
    hints = {name: hint for name, hint in HINTS.items() if hint.partition("=")[0] in names}

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        check_keywords(method, options, hints)
        if not args and first in options:
            args = (options.pop(first),)
        if not args:
            raise InputError(f"missing {first}: pass one, or a list")
        inputs, *others = args
        inputs, types = self.as_input(inputs), self.input_types
        if isinstance(inputs, types):
            one: Any = [inputs]
            return _drawable(method(self, one, *others, **options)[0])
        return _drawable(
            [*map(_drawable, method(self, input_list(inputs, types, first, self.as_input), *others, **options))]
        )

    call.__signature__ = _of_one_or_many(inspect.signature(method), first)  # type: ignore[attr-defined]
    return cast(Any, call)


def _drawable(result: Any) -> Any:
    """Return a list as `Results`, such as several answers to one input."""
    return Results(result) if isinstance(result, list) else result


def _of_one_or_many(signature: inspect.Signature, first: str) -> inspect.Signature:
    """Return the signature of a method from a list to a list as that of one that also takes one input."""
    parameters = dict(signature.parameters)
    one, answer = get_args(parameters[first].annotation)[0], get_args(signature.return_annotation)[0]
    parameters[first] = parameters[first].replace(annotation=one | parameters[first].annotation)
    return signature.replace(parameters=[*parameters.values()], return_annotation=answer | signature.return_annotation)


def input_list(
    inputs: Any, types: tuple[type, ...], name: str, as_input: Callable[[Any], Any] = Pipeline.as_input
) -> list[Any]:
    """Return the inputs of an iterable; raise if one has the wrong type."""
    names = " or ".join(kind.__name__ for kind in types)
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes | dict) or getattr(inputs, "ndim", 1) != 1:
        raise InputError(f"{name} must be {names}, or a list of them, not {type(inputs).__name__}")
    items = [*map(as_input, inputs)]
    for number, item in enumerate(items, start=1):
        if not isinstance(item, types):
            raise InputError(f"{name}: input {number} must be {names}, not {type(item).__name__}")
    return items


def describe_network(model: nn.Module) -> str:
    """Return the class, the size and the device of a network: "Transformer, 2.61 M parameters, cpu"."""
    size = sum(parameter.numel() for parameter in model.parameters())
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return f"{type(model).__name__}, {size / 1e6:.2f} M parameters, {device}"


@dataclass(frozen=True)
class DecoderTokens:
    """Special tokens of a decoder."""

    begin: int
    end: int
    suppressed: list[int]  # never generated

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, config: Any) -> "DecoderTokens":
        """Return the tokens that the model's config sets, as released translators do, and else the tokenizer's."""
        tokens = tokenizer.special_tokens.replace(
            **{name: getattr(config, f"{name}_token", None) for name in ("pad", "begin", "end")}
        )
        if tokens.begin is None or tokens.end is None:
            raise InputError("the tokenizer defines no begin or end token")
        return cls(tokens.begin, tokens.end, tokens.suppressed)


def require_text(texts: Sequence[str]) -> None:
    """Raise for the first text that is empty or blank."""
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise InputError(f"input {number} is empty", field="input")

"""Attention of one input, with heads ablated and tokens masked, for the explorer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qkv.attention import Dense, ablate
from qkv.attention.layers import attention_layers
from qkv.errors import InputError
from qkv.interpret.attention_probe import AttentionProbe
from qkv.nn.interfaces import LanguageModel, TextEncoder
from qkv.pipelines.output import Answer
from qkv.pipelines.translator import Translator


@dataclass(frozen=True)
class AttentionOptions:
    """What to change before the attention is computed."""

    layer: str | None = None  # kept if not all layers fit into a page
    ablate: tuple[tuple[str, int], ...] = ()  # layers and heads whose output is zero
    mask: tuple[int, ...] = ()  # indices of input tokens that no query may attend to


AttentionFunction = Callable[[str, AttentionOptions], Answer]


def attention_function(network: nn.Module, pipelines: Sequence[Any]) -> AttentionFunction | None:
    """Return a function from an input and options to an answer with its attention; None if the model has none."""
    if not attention_layers(network):
        return None
    translators = [pipeline for pipeline in pipelines if isinstance(pipeline, Translator)]
    if translators:
        translator = translators[0]
        layers = [name for name in attention_layers(network) if name.startswith("encoder")]
        layers += [name for name in translator.model.alignment_layers if name not in layers]

        def translate(text: str, options: AttentionOptions) -> Answer:
            with changed(network, layers, options):
                answer: Answer = translator(text, attention=True)
            return answer

        return translate
    if not isinstance(network, TextEncoder | LanguageModel):
        return None
    try:
        probe = AttentionProbe(network)
    except InputError:  # e.g. a hierarchical model, whose attention is not over tokens
        return None

    def attend(text: str, options: AttentionOptions) -> Answer:
        with changed(network, [*probe.layers], options):
            answer: Answer = probe(text, layer=options.layer)
        return answer

    return attend


@contextmanager
def changed(network: nn.Module, layers: Sequence[str], options: AttentionOptions) -> Iterator[None]:
    """Ablate heads, and mask input tokens in these layers, inside a `with` block."""
    with ExitStack() as stack:
        for layer, head in options.ablate:
            stack.enter_context(ablate(network, layer, [head]))
        if options.mask:
            if getattr(getattr(network, "config", None), "rank", None) is not None:
                raise InputError(
                    "mask: a Linformer attends to projections of all tokens, which cannot be masked", field="mask"
                )
            attends = attention_layers(network)
            for name in layers:
                stack.enter_context(masked_keys(attends[name], options.mask))
        yield


@contextmanager
def masked_keys(layer: nn.Module, positions: Sequence[int]) -> Iterator[None]:
    """Hide the keys at these positions from all queries of a layer."""

    def hide(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        query, key, value, *rest = arguments
        keys = value.shape[2]
        if max(positions) >= keys:
            raise InputError(
                f"mask: there is no token {max(positions)}: the input has tokens 0 to {keys - 1}", field="mask"
            )
        visible = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=value.device)
        visible[..., list(positions)] = False
        mask = rest[0] if rest else options.pop("mask", None)
        return (query, key, value, Dense(visible) if mask is None else mask & Dense(visible)), options

    hook = layer.register_forward_pre_hook(hide, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()

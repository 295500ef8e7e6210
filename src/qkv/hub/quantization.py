"""Checkpoints with int8 weights.

config.json has "quantization": "int8". The matrices [out, in] of linear layers and token embeddings are int8, each with
a float32 `weight_scale` of its rows; biases, normalization and positions are float32.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from qkv.errors import InputError
from qkv.hub.meta_model import empty_model
from qkv.hub.tensors import StoredTensor, map_tensors
from qkv.models.gpt2 import GPT2
from qkv.models.llama import Llama
from qkv.models.transformer import Transformer
from qkv.nn.quantized import quantize_layers, quantized_layers
from qkv.types import Tensor

QUANTIZATION = "int8"
QUANTIZABLE = (GPT2, Llama, Transformer)


def require_quantizable(network: type[Any]) -> None:
    """Raise unless models of this class can be quantized."""
    if not issubclass(network, QUANTIZABLE):
        supported = ", ".join(supported.__name__ for supported in QUANTIZABLE)
        raise InputError(f"{network.__name__} cannot be quantized to int8; supported: {supported}")


def quantized_dtypes(model: nn.Module) -> dict[str, str]:
    """Return the dtypes in the file of the weights and scales of quantized layers, by parameter name."""
    names = ((name, key) for name in quantized_layers(model) for key in ("weight", "weight_scale"))
    return {f"{name}.{key}": "I8" if key == "weight" else "F32" for name, key in names}


def empty_quantized_model(network: Any, config: Any, dtype: torch.dtype | None) -> Any:
    """Build a quantized model whose int8 weights and scales are on the meta device, until `load_weights`."""
    with _matrices_on_meta():
        model = empty_model(network, config, dtype)
    quantize_layers(model)
    return model.to(dtype=dtype)


@torch.no_grad()
def load_weights(model: nn.Module, stored: Mapping[str, StoredTensor]) -> None:
    """Copy the stored values into the parameters of a model; int8 weights are mapped into memory instead."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    weights = map_tensors([stored[name] for parameter, name in names.items() if parameter.dtype == torch.int8])
    for parameter, name in names.items():
        if name not in weights:
            weights[name] = torch.empty(parameter.shape, dtype=parameter.dtype) if parameter.is_meta else parameter
            stored[name].copy_into(weights[name])
    quantized: dict[Tensor, nn.Parameter] = {  # tied layers share their parameters
        parameter: nn.Parameter(weights[name], requires_grad=False)
        for parameter, name in names.items()
        if parameter.is_meta
    }
    for layer in quantized_layers(model).values():
        layer.weight, layer.weight_scale = quantized[layer.weight], quantized[layer.weight_scale]


@contextmanager
def _matrices_on_meta() -> Iterator[None]:
    """Move the weights of linear layers and embeddings to the meta device as soon as they are registered."""

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if name != "weight" or not isinstance(module, nn.Linear | nn.Embedding) or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta"))

    hook = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()

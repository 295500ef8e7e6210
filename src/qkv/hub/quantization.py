"""Checkpoints with int8 weights.

config.json has "quantization": "int8", and each int8 matrix has float32 scales of its rows, `NAME_scale`.

- GPT-2, Llama and the Transformer compute with int8 weights, which are mapped into memory. The matrices [out, in] of
  their linear layers and token embeddings are int8; biases, normalization and positions are float32.
- Other models are smaller in the file only: all matrices of at least `MIN_SIZE` weights are int8, and are converted to
  floating point when they are loaded.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from qkv.hub.meta_model import empty_model
from qkv.hub.tensors import StoredTensor, map_tensors
from qkv.models.gpt2 import GPT2
from qkv.models.llama import Llama
from qkv.models.transformer import Transformer
from qkv.nn.quantized import quantize, quantize_layers, quantized_layers
from qkv.types import Tensor

QUANTIZATION = "int8"
SCALE = "_scale"  # suffix of the names of scales
COMPUTES_INT8 = (GPT2, Llama, Transformer)
MIN_SIZE = 4096  # weights of a matrix that is stored in int8


def computes_int8(network: type[Any]) -> bool:
    """Return whether models of this class compute with int8 weights."""
    return issubclass(network, COMPUTES_INT8)


def quantize_model(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a quantized model and their scales, by name, as they are stored in a file.

    Layers of a model that computes with int8 weights are replaced by quantized ones.
    """
    if computes_int8(type(model)):
        quantize_layers(model)
        return dict(model.named_parameters())
    weights: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        if weight.ndim < 2 or weight.numel() < MIN_SIZE:
            weights[name] = weight.detach()
            continue
        rows, scale = quantize(weight.detach().flatten(1))
        weights[name], weights[f"{name}{SCALE}"] = rows.view(weight.shape), scale
    return weights


def file_layout(meta: nn.Module) -> tuple[dict[str, torch.Size], dict[str, str]]:
    """Return the shapes of the tensors in the file of a quantized model, and the dtypes of weights and scales."""
    weights = quantize_model(meta)
    dtypes = {name: "I8" for name, weight in weights.items() if weight.dtype == torch.int8}
    scales = {f"{name}{SCALE}": "F32" for name in dtypes}
    return {name: weight.shape for name, weight in weights.items()}, dtypes | scales


def empty_quantized_model(network: Any, config: Any, dtype: torch.dtype | None) -> Any:
    """Build a quantized model whose int8 weights and scales are on the meta device, until `load_weights`."""
    with _matrices_on_meta():
        model = empty_model(network, config, dtype)
    quantize_layers(model)
    return model.to(dtype=dtype)


@torch.no_grad()
def load_weights(model: nn.Module, stored: Mapping[str, StoredTensor]) -> None:
    """Copy the stored values into the parameters of a model; int8 parameters are mapped into memory instead.

    Int8 values become floating-point ones if the parameter is.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    weights = map_tensors([stored[name] for parameter, name in names.items() if parameter.dtype == torch.int8])
    for parameter, name in names.items():
        if name not in weights:
            weights[name] = torch.empty(parameter.shape, dtype=parameter.dtype) if parameter.is_meta else parameter
            _copy(stored, name, weights[name])
    quantized: dict[Tensor, nn.Parameter] = {  # tied layers share their parameters
        parameter: nn.Parameter(weights[name], requires_grad=False)
        for parameter, name in names.items()
        if parameter.is_meta
    }
    for layer in quantized_layers(model).values():
        layer.weight, layer.weight_scale = quantized[layer.weight], quantized[layer.weight_scale]


def _copy(stored: Mapping[str, StoredTensor], name: str, weight: Tensor) -> None:
    """Copy stored values into a floating-point weight: W = q * scale if they are int8."""
    if stored[name].dtype != "I8":
        stored[name].copy_into(weight)
        return
    scale = stored[f"{name}{SCALE}"].read_finite(weight.dtype)
    weight.copy_(stored[name].read()).mul_(scale.view(-1, *[1] * (weight.ndim - 1)))


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

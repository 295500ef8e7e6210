"""The Transformer as a compiled graph and as a CUDA graph, with and without watch."""

import pytest
import torch

import qkv
from qkv.models.transformer import Transformer, TransformerConfig

LENGTHS = torch.tensor([7, 3, 5])


def model_and_inputs(device: str = "cpu") -> tuple[Transformer, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    config = TransformerConfig(
        source_vocab_size=13,
        target_vocab_size=13,
        dim=16,
        heads=2,
        encoder_layers=2,
        decoder_layers=2,
        ffn_dim=32,
        dropout=0.0,
    )
    source, target = torch.randint(0, 13, (3, 7)), torch.randint(0, 13, (3, 5))
    inputs = tuple(x.to(device) for x in (source, target, LENGTHS))
    return Transformer(config).to(device).eval(), inputs


@pytest.mark.compiled
def test_compiled_model_matches_eager_with_and_without_watch():
    model, inputs = model_and_inputs()
    with qkv.watch(model) as expected:
        logits = model(*inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), logits)
    with qkv.watch(compiled) as seen:
        torch.testing.assert_close(compiled(*inputs), logits)
    assert set(seen) == set(expected)
    for layer, record in seen.items():
        torch.testing.assert_close(record.weights, expected[layer].weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.inference_mode()
def test_a_cuda_graph_replays_with_new_inputs_and_shows_their_attention():
    model, inputs = model_and_inputs("cuda")
    model(*inputs)  # makes its table of positions, and lets libraries set themselves up
    graph = torch.cuda.CUDAGraph()
    with qkv.watch(model) as seen, torch.cuda.graph(graph):
        captured = model(*inputs)
    others = [x.flip(0) for x in inputs]
    for kept, other in zip(inputs, others, strict=True):
        kept.copy_(other)
    graph.replay()
    with qkv.watch(model) as expected:
        logits = model(*others)
    torch.testing.assert_close(captured, logits)
    for layer, record in seen.items():
        torch.testing.assert_close(record.weights, expected[layer].weights)

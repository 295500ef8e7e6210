"""The operator in a compiled graph with dynamic shapes."""

import pytest
import torch
from torch import Tensor

from qkv.attention import ALiBi, Causal, Documents, LocalPredictive, Padding, Prefix, attend
from qkv.models import GPT2, GPT2Config

pytestmark = pytest.mark.compiled


def test_one_graph_supports_dynamic_shapes():
    torch.manual_seed(0)
    local = LocalPredictive(8, 2)

    def forward(query: Tensor, key: Tensor, lengths: Tensor, ids: Tensor) -> Tensor:
        fused = attend(query, key, key, mask=Causal() & Padding(lengths)).output
        biased = attend(query, key, key, mask=Documents(ids) | Prefix(lengths), position=ALiBi(2)).output
        return fused + biased + attend(query, key, key, mask=Padding(lengths), align=local).output

    compiled = torch.compile(forward, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, queries, keys in ((2, 3, 5), (3, 4, 9), (4, 6, 7), (1, 1, 1), (2, 1, 6)):
        query, key = torch.randn(batch, 2, queries, 8), torch.randn(batch, 2, keys, 8)
        lengths, ids = torch.randint(0, keys + 1, (batch,)), torch.randint(0, 2, (batch, keys))
        torch.testing.assert_close(compiled(query, key, lengths, ids), forward(query, key, lengths, ids))


def test_an_exported_language_model_takes_other_batch_sizes_and_lengths():
    model = GPT2(GPT2Config(vocab_size=50, dim=16, heads=2, layers=2, max_length=32)).eval()
    sizes = {"tokens": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=32)}}
    exported = torch.export.export(model, (torch.randint(50, (2, 9)),), dynamic_shapes=sizes).module()
    for batch, length in ((1, 4), (3, 32)):
        tokens = torch.randint(50, (batch, length))
        torch.testing.assert_close(exported(tokens), model(tokens))

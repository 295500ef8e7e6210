"""Memory probe of a neural Turing machine: inputs, outputs, and the weights of its heads."""

import numpy as np
import pytest
import torch

import qkv
from qkv.datasets.corpora.synthetic.bit_sequences import Copy, RepeatCopy
from qkv.errors import InputError
from qkv.hub.model_folder import save_model
from qkv.interpret.memory_probe import MemoryProbe
from qkv.models.memory.lstm_baseline import LSTMBaseline, LSTMBaselineConfig
from qkv.models.memory.ntm import NTM, NTMConfig

PUZZLE = Copy(bits=3)


def machine() -> NTM:
    torch.manual_seed(0)
    return NTM(NTMConfig(input_dim=5, output_dim=3, hidden_dim=4, locations=7, location_dim=2, read_heads=2)).eval()


def test_trace_has_the_weights_and_outputs_of_every_step():
    model = machine()
    trace = MemoryProbe(model, PUZZLE)((4,))
    assert trace.size == "4"
    assert trace.write_weights.shape == (1, 10, 7)
    assert trace.read_weights.shape == (2, 10, 7)
    x = torch.from_numpy(trace.inputs)[None]
    with qkv.watch(model) as records, torch.no_grad():
        logits = model(x)[0]
    np.testing.assert_allclose(trace.predicted, logits.sigmoid().numpy(), atol=1e-6)
    np.testing.assert_allclose(trace.read_weights, records["read_heads"].weights[0].numpy(), atol=1e-6)
    wrong = sum(
        (trace.predicted[step, bit] > 0.5) != bool(trace.targets[step, bit])
        for step in range(6, 10)
        for bit in range(3)
    )
    assert trace.wrong == wrong


def test_another_puzzle_or_a_model_without_memory_is_an_error(tmp_path):
    with pytest.raises(InputError, match="5 inputs"):
        MemoryProbe(machine(), RepeatCopy())
    save_model(LSTMBaseline(LSTMBaselineConfig(input_dim=5, output_dim=3)), None, tmp_path)
    with pytest.raises(InputError, match="LSTMBaseline"):
        MemoryProbe(tmp_path, PUZZLE, "cpu")

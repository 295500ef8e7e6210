"""Claim 44: a neural Turing machine copies sequences longer than those in training; an LSTM does not."""

from typing import Any

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.memory.copy_task import BITS, MULTIPLES, TRAINED, train_and_test
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.models.memory.lstm_baseline import LSTMBaseline, LSTMBaselineConfig
from qkv.models.memory.ntm import NTM, NTMConfig
from qkv.nn.interfaces import SequenceModel
from qkv.registry import register


@register("claim", "ntm-length")
class NTMLength(SampledClaim):
    """Wrong bits of copies by length, for a neural Turing machine and an LSTM."""

    number = 44
    title = "A neural Turing machine copies longer sequences than in training"
    statement = (
        "A network that reads and writes a memory with attention over its locations, by content and by location, "
        "learns a procedure that also works for longer sequences; an LSTM does not."
    )
    notes = (Note("003", "Generalized model of attention"), Note("003", "Alignment scores"))
    equation = "r_t = sum_i w_t(i) M_t(i),   sum_i w_t(i) = 1,   0 <= w_t(i) <= 1"
    source = ("src/qkv/models/memory/ntm.py::NTM", "src/qkv/models/memory/lstm_baseline.py::LSTMBaseline")
    hypothesis = (
        "After training on sequences of 1 to 5 bit vectors (20 at full scale), less than 10 % of the bits of the "
        "machine are wrong at twice the trained length, and at least 15 points fewer than of an LSTM. By chance "
        "50 % are wrong."
    )
    criteria = (
        Mean("wrong bits at twice the length: NTM", high=10.0),
        Difference("wrong bits at twice the length: LSTM", "wrong bits at twice the length: NTM", low=15.0),
    )
    figure = (
        Panel(
            "Copies of sequences, by length", "wrong bits, %",
            ("wrong bits by length: NTM", "wrong bits by length: LSTM"), x_label="length / longest length in training",
        ),
    )  # fmt: skip
    limits = (
        "The machine must have learned the task, which it does not with every seed after few steps, and the memory "
        "must have a location for each vector. Beyond that the copy fails. More seeds would narrow the interval."
    )

    seeds_in_processes = True

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        bits = BITS[scale]
        sizes = {"input_dim": bits + 2, "output_dim": bits}
        locations = 2 * max(MULTIPLES) * TRAINED[scale]
        models: dict[str, SequenceModel[Any]] = {
            "NTM": NTM(NTMConfig(**sizes, hidden_dim=64, locations=locations)),
            "LSTM": LSTMBaseline(LSTMBaselineConfig(**sizes, hidden_dim=120)),
        }
        seed = torch.initial_seed()
        with threads(1):
            curves = {name: train_and_test(model.to(device), scale, seed) for name, model in models.items()}
        values = {f"wrong bits at twice the length: {name}": curve[2] for name, curve in curves.items()}
        return Sample(values, {f"wrong bits by length: {name}": curve for name, curve in curves.items()})

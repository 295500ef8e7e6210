"""Methods that encoder-decoders inherit."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.nn.encoder_decoder import EncoderDecoder


@dataclass(frozen=True)
class Sum:
    total: Tensor  # batch


class StepModel(EncoderDecoder[Sum, Sum]):
    """Defines `step`: the running sum of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def encode(self, source, source_lengths=None):
        return Sum(source.sum(dim=1))

    def init_state(self, memory):
        return memory

    def step(self, token, state):
        state = Sum(state.total + token)
        return state.total[:, None] * self.scale, state


class AdvanceModel(StepModel):
    """The same, defining `advance`."""

    step = EncoderDecoder.step

    def advance(self, tokens, state):
        totals = state.total[:, None] + tokens.cumsum(dim=1)
        return totals[:, :, None] * self.scale, Sum(totals[:, -1])


def test_step_and_advance_are_derived_from_each_other():
    source, target = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[10, 20, 30], [50, 60, 70]])
    totals = torch.tensor([[13.0, 33.0, 63.0], [57.0, 117.0, 187.0]])
    for model in (StepModel(), AdvanceModel()):
        assert model(source, target).equal(totals[:, :, None].expand(-1, -1, 3))
        logits, state = model.advance(target[:, :2], model.init_state(model.encode(source)))
        assert logits.equal(totals[:, :2, None].expand(-1, -1, 3))
        logits, state = model.step(target[:, 2], state)
        assert logits.equal(totals[:, 2, None].expand(-1, 3))
        assert state.total.equal(totals[:, 2].long())

"""What an encoder-decoder is given by defining no more than it must."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.nn.encoder_decoder import EncoderDecoder


@dataclass(frozen=True)
class Sum:
    total: Tensor  # batch


class ByStep(EncoderDecoder[Sum, Sum]):
    """Says the sum of all that it was told, a token at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def encode(self, source, source_lengths=None):
        return Sum(source.sum(dim=1))

    def start(self, memory):
        return memory

    def step(self, token, state):
        state = Sum(state.total + token)
        return state.total[:, None] * self.scale, state


class AtOnce(ByStep):
    """The same for any number of tokens."""

    step = EncoderDecoder.step

    def advance(self, tokens, state):
        totals = state.total[:, None] + tokens.cumsum(dim=1)
        return totals[:, :, None] * self.scale, Sum(totals[:, -1])


def test_a_model_defines_one_step_or_any_number_of_them_and_has_the_other():
    source, target = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[10, 20, 30], [50, 60, 70]])
    totals = torch.tensor([[13.0, 33.0, 63.0], [57.0, 117.0, 187.0]])
    for model in (ByStep(), AtOnce()):
        assert model(source, target).equal(totals[:, :, None].expand(-1, -1, 3))
        logits, state = model.advance(target[:, :2], model.start(model.encode(source)))
        assert logits.equal(totals[:, :2, None].expand(-1, -1, 3))
        logits, state = model.step(target[:, 2], state)
        assert logits.equal(totals[:, 2, None].expand(-1, 3))
        assert state.total.equal(totals[:, 2].long())

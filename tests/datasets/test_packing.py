"""Tests of sequence packing."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.attention import Causal, Documents, attend
from qkv.datasets.packing import IGNORE_INDEX, pack

PAD = 99


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), max_size=9), max_size=9), st.integers(1, 7))
def test_every_token_occurs_once_with_its_position_and_target(texts, length):
    packed = pack(texts, length, PAD)
    flat = [token for text in texts for token in text]
    owners = [number for number, text in enumerate(texts) for _ in text]
    assert packed.tokens.flatten().tolist()[: len(flat)] == flat
    assert packed.texts.flatten().tolist()[: len(flat)] == owners
    assert (packed.tokens.flatten()[len(flat) :] == PAD).all()
    assert (packed.texts.flatten()[len(flat) :] == IGNORE_INDEX).all()
    assert len(packed.tokens) == -(-len(flat) // length)
    for row in range(len(packed.tokens)):
        for column in range(length):
            text = packed.texts[row, column]
            same = [other for other in range(length) if packed.texts[row, other] == text]
            assert packed.positions[row, column] == column - same[0]
            follows = column + 1 in same and text != IGNORE_INDEX
            assert packed.targets[row, column] == (packed.tokens[row, column + 1] if follows else IGNORE_INDEX)


def test_masked_attention_in_a_row_equals_that_of_each_text_alone():
    packed = pack([[1, 2, 3], [4], [5, 6, 7, 8]], 8, PAD)
    x = torch.randn(1, 2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = attend(x, x, x, mask=Causal() & Documents(packed.texts)).output
    for begin, end in ((0, 3), (3, 4), (4, 8)):
        own = x[:, :, begin:end]
        torch.testing.assert_close(together[:, :, begin:end], attend(own, own, own, mask=Causal()).output)

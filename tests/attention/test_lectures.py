"""Worked examples of the lecture notes."""

import pytest
import torch

from qkv.attention import Sinusoidal, attend


def test_the_attention_head_exercise_matches_the_notes():
    # "Self-Attention and Transformer Networks", Example Exercises, Problem 1: attention of the last word of
    # "Awful plot and actors. The movie is".
    embedded = torch.tensor(
        [[0, 0, 0], [0, -5, 1], [1, 0, 2], [0, 0, 3], [-1, 0, 4], [0, 0, 5], [-2, 0, 6], [0, 0, 7]], dtype=torch.float64
    )
    projection = torch.tensor([[0.1, 0], [0, -0.1], [0, 0.1]], dtype=torch.float64)
    x = (embedded @ projection)[None, None]
    result = attend(x[:, :, -1:], x, x, need_weights=True)
    expected = torch.tensor([0.101, 0.136, 0.112, 0.118, 0.124, 0.130, 0.136, 0.143], dtype=torch.float64)
    torch.testing.assert_close(result.weights[0, 0, 0], expected, rtol=0, atol=5e-4)
    z = result.output[0, 0, 0]
    torch.testing.assert_close(z, torch.tensor([-0.028, 0.436], dtype=torch.float64), rtol=0, atol=5e-4)
    good, bad = (z[0] - z[1]).item(), (z[1] - z[0]).item()
    assert (good, bad) == pytest.approx((-0.464, 0.464), abs=1e-3)
    assert bad > good  # the prediction is negative


def test_sinusoidal_positions_match_the_notes():
    # H. Beigy, "Deep learning: Attention models" (Sharif University of Technology, 2023), Transformers family.
    # The formula there has i/d in the exponent for even and odd i alike, which would give cos(1 / 10000^(1/512)) =
    # 0.5553 in the second column; its numbers, like the paper, use one exponent per pair. The notes
    # truncate instead of rounding: 0.8414 is sin(1) = 0.84147, 0.8218 is 0.82186.
    table = Sinusoidal(512)(2)
    assert table[0, :4].tolist() == [0, 1, 0, 1]
    assert table[1, :3].tolist() == pytest.approx([0.8414, 0.5403, 0.8218], abs=1e-4)
    assert table[1, -2:].tolist() == pytest.approx([0.0001, 0.9999], abs=1e-4)


def test_an_offset_is_a_rotation_independent_of_the_position():
    table = Sinusoidal(16)(50).double()
    pairs = table.unflatten(1, (8, 2))
    for offset in (1, 7):
        angle = offset * 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        rotation = torch.stack(
            (torch.stack((angle.cos(), angle.sin()), -1), torch.stack((-angle.sin(), angle.cos()), -1)), dim=-2
        )
        rotated = torch.einsum("fij,pfj->pfi", rotation, pairs[:-offset])
        torch.testing.assert_close(rotated, pairs[offset:], rtol=0, atol=1e-5)


def test_sinusoidal_supports_any_offset_and_length():
    full = Sinusoidal(8)(1000)
    late = Sinusoidal(8)
    torch.testing.assert_close(late(3, offset=997), full[997:])
    torch.testing.assert_close(late(5), full[:5])

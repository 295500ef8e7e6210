"""Positions of image patches: loops over offsets, and the convolution that nine heads compute."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Causal, Quadratic, ScoreShape, Sizes, attend
from qkv.attention.score_shape import CellIndex
from qkv.config import Term
from qkv.errors import InputError, ShapeError
from qkv.nn.multi_head import MultiHeadAttention


def quadratic(heads: int, columns: int) -> Quadratic:
    term = Quadratic(heads, columns).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in term.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return term


def centers(term: Quadratic) -> torch.Tensor:
    return torch.stack((term.center_row, term.center_column), dim=1)


def bias(term: Quadratic, tokens: int) -> torch.Tensor:
    shape = ScoreShape(1, term.heads, tokens, tokens, torch.device("cpu"))
    return term.bias(torch.zeros(1, term.heads, tokens, 4, dtype=torch.float64), shape)(CellIndex(shape))[0]


def test_the_bias_equals_a_loop_over_patches() -> None:
    term, rows, columns = quadratic(3, 4), 2, 4
    expected = torch.zeros(3, 9, 9, dtype=torch.float64)
    patches = [(row, column) for row in range(rows) for column in range(columns)]
    for head in range(3):
        for i, (row, column) in enumerate(patches, start=1):
            for j, (other_row, other_column) in enumerate(patches, start=1):
                offset = torch.tensor([other_row - row, other_column - column], dtype=torch.float64)
                expected[head, i, j] = -term.log_sharpness[head].exp() * (offset - centers(term)[head]).square().sum()
    torch.testing.assert_close(bias(term, 9), expected)


def test_heads_start_at_different_offsets_around_the_query() -> None:
    term = Quadratic(9, columns=5)
    assert {*map(tuple, centers(term).tolist())} == {(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)}
    assert centers(term)[0].tolist() == [0, 0]
    assert centers(term)[:5].abs().sum(dim=1).max() == 1
    many = centers(Quadratic(64, columns=5))
    assert len({*map(tuple, many.tolist())}) == 64
    assert many.norm(dim=1).max() <= 64**0.5


def test_nine_sharp_heads_compute_a_convolution_with_a_kernel_of_3_x_3() -> None:
    """Theorem 1 of Cordonnier et al.: head h of the value and output projections holds one element of the kernel."""
    torch.manual_seed(0)
    dim, height, width = 18, 4, 5
    convolution = nn.Conv2d(dim, dim, kernel_size=3, padding=1, bias=False).double()
    term = Quadratic(9, width, sharpness=1e3)
    attention = MultiHeadAttention(9 * dim, 9, position=term).double()
    x = torch.randn(2, dim, height, width, dtype=torch.float64)
    with torch.no_grad():
        attention.qkv_proj.weight.zero_()
        attention.qkv_proj.bias.zero_()
        attention.out_proj.weight.zero_()
        for head, (row, column) in enumerate(centers(term).long().tolist()):
            features = slice(head * dim, (head + 1) * dim)
            attention.qkv_proj.weight[2 * 9 * dim :][features, :dim] = torch.eye(dim, dtype=torch.float64)
            attention.out_proj.weight[:dim, features] = convolution.weight[:, :, 1 + row, 1 + column]
        tokens = F.pad(x.flatten(2).transpose(1, 2), (0, 8 * dim, 1, 0))  # the class token, then the patches
        to_patches = (torch.arange(1 + height * width) > 0).expand(1 + height * width, -1)
        actual = attention(tokens, to_patches)[0][:, 1:, :dim].transpose(1, 2).unflatten(2, (height, width))
    inside = (..., slice(1, -1), slice(1, -1))  # at the border, attention has no zeros to attend to
    torch.testing.assert_close(actual[inside], convolution(x)[inside])


def test_the_class_token_has_no_offsets() -> None:
    values = bias(quadratic(2, 3), 7)
    assert (values[:, 0] == 0).all()
    assert (values[:, :, 0] == 0).all()
    assert (values[:, 1:, 1:] != 0).all()


def test_a_wider_grid_shares_the_parameters() -> None:
    term = quadratic(2, 3)
    wide = term.on_grid(5)
    assert wide.log_sharpness is term.log_sharpness
    assert (term.columns, wide.columns) == (3, 5)
    assert term.on_grid(3) is term
    same_offset = bias(term, 10)[:, 1, 5], bias(wide, 16)[:, 1, 7]  # one row down, one column to the right
    torch.testing.assert_close(*same_offset)


def test_gradients_match_finite_differences() -> None:
    term = quadratic(2, 2)
    x = torch.randn(1, 2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, *_: attend(x, x, x, position=term, mask=Causal()).output, (x, *term.parameters())
    )


def test_wrong_sizes_are_errors() -> None:
    x = torch.zeros(1, 4, 3, 4)
    with pytest.raises(ShapeError, match="2 heads"):
        attend(x, x, x, position=Quadratic(2, 2))
    for heads, columns in ((0, 3), (3, 0)):
        with pytest.raises(InputError, match="at least one"):
            Quadratic(heads, columns)
    with pytest.raises(InputError, match="positive"):
        Quadratic(2, 3, sharpness=0.0)
    sizes = Sizes(query=4, key=4, hidden=4, max_keys=5, heads=2)
    with pytest.raises(InputError, match="vit"):
        Term("position", "quadratic").build(sizes)
    assert repr(Term("position", "quadratic").build(sizes._replace(grid=(2, 2)))) == "Quadratic(heads=2, columns=2)"

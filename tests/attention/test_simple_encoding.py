"""Positional encodings by index, fraction and one-hot vectors."""

import pytest
import torch

from qkv.attention.score import Sizes
from qkv.attention.simple_encoding import IndexEncoding, IndexFraction, OneHotEncoding
from qkv.config import Term
from qkv.errors import InputError

SIZES = Sizes(query=2, key=2, hidden=2, max_keys=10, heads=2)
EXPECTED = {
    "index": [[2.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]],
    "index_fraction": [[0.2, 0.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0]],
    "one_hot": [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_vectors_of_positions_2_and_3(name, expected):
    encoding = Term("position", name).build(SIZES)
    torch.testing.assert_close(encoding(2, offset=2), torch.tensor(expected))
    torch.testing.assert_close(encoding.at(torch.tensor([[3], [2]]))[:, 0], torch.tensor(expected[::-1]))
    assert encoding.double()(1).dtype == torch.float64
    assert not list(encoding.parameters())
    assert not encoding.state_dict()


def test_classes():
    built = [type(Term("position", name).build(SIZES)) for name in EXPECTED]
    assert built == [IndexEncoding, IndexFraction, OneHotEncoding]


def test_errors():
    with pytest.raises(InputError, match="4 positions"):
        OneHotEncoding(4)(5)
    with pytest.raises(InputError, match="negative"):
        IndexEncoding(4)(1, offset=-1)

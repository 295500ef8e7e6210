"""A key-value cache returns exactly what was appended."""

import torch

from qkv.attention import Keys, KeyValue
from qkv.nn.interfaces import select


def sequence(length: int = 6):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(2, 3, length, size, generator=generator) for size in (4, 5))


def test_appended_chunks_are_returned_in_order():
    key, value = sequence()
    cache = KeyValue(key[:, :, :0], value[:, :, :0])
    for first, last in ((0, 1), (1, 4), (4, 6)):
        cache = cache.append(Keys(key[:, :, first:last]), value[:, :, first:last])
    assert cache.length == 6
    assert cache.key.equal(key)
    assert cache.value.equal(value)


def test_selected_rows_are_independent_of_the_original():
    key, value = sequence()
    cache = KeyValue(key[:, :, :3], value[:, :, :3])
    selected = select(cache, torch.tensor([1, 1, 0]))
    assert selected.length == 3
    assert selected.key.equal(key[[1, 1, 0], :, :3])
    extended = selected.append(Keys(key[[0, 1, 0], :, 3:4]), value[[0, 1, 0], :, 3:4])
    assert extended.value[:, :, 3].equal(value[[0, 1, 0], :, 3])
    assert cache.length == 3

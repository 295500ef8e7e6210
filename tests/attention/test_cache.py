"""Key-value caches return exactly what was appended."""

import subprocess
import sys

import pytest
import torch

from qkv.attention import Causal, Keys, KeyValue, StaticKeyValue, Window, attend
from qkv.errors import InputError
from qkv.nn.interfaces import select


def sequence(length: int = 6):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(2, 3, length, size, generator=generator) for size in (4, 5))


def empty(kind: str, capacity: int = 8):
    key, value = sequence()
    if kind == "growing":
        return KeyValue(key[:, :, :0], value[:, :, :0])
    return StaticKeyValue.like(Keys(key), value, capacity, torch.tensor(0) if kind == "tensor" else 0)


KINDS = ["growing", "number", "tensor"]


@pytest.mark.parametrize("kind", KINDS)
def test_appended_chunks_are_returned_in_order(kind):
    key, value = sequence()
    cache = empty(kind)
    for first, last in ((0, 1), (1, 4), (4, 6)):
        cache = cache.append(Keys(key[:, :, first:last]), value[:, :, first:last])
    assert int(cache.length) == 6
    assert cache.keys.tensor[:, :, :6].equal(key)
    assert cache.values[:, :, :6].equal(value)
    assert cache.keys.tensor[:, :, 6:].eq(0).all()
    assert cache.values.shape[2] == (8 if kind == "tensor" else 6)


@pytest.mark.parametrize("mask", [Causal(), None, Window(1, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_queries_attend_only_to_the_filled_part(kind, mask):
    key, value = sequence()
    query = key.flip(0)
    cache = empty(kind)
    for first, last in ((0, 2), (2, 3), (3, 6)):
        cache = cache.append(Keys(key[:, :, first:last]), value[:, :, first:last])
        actual = attend(
            query[:, :, first:last],
            cache.keys,
            cache.values,
            mask=cache.mask_unfilled(mask),
            start=cache.first_position(last - first),
        )
        expected = attend(query[:, :, first:last], key[:, :, :last], value[:, :, :last], mask=mask)
        torch.testing.assert_close(actual.output, expected.output)


@pytest.mark.parametrize("kind", KINDS)
def test_selected_rows_are_independent_of_the_original(kind):
    key, value = sequence()
    cache = empty(kind).append(Keys(key[:, :, :3]), value[:, :, :3])
    selected = select(cache, torch.tensor([1, 1, 0]))
    assert int(selected.length) == 3
    assert selected.keys.tensor[:, :, :3].equal(key[[1, 1, 0], :, :3])
    extended = selected.append(Keys(key[[0, 1, 0], :, 3:4]), value[[0, 1, 0], :, 3:4])
    assert extended.values[:, :, 3].equal(value[[0, 1, 0], :, 3])
    assert cache.values[:, :, 3:].eq(0).all()


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_static_cache_is_never_reallocated(kind):
    key, value = sequence()
    cache = empty(kind)
    memory = cache.key.data_ptr(), cache.value.data_ptr()
    for position in range(6):
        cache = cache.append(Keys(key[:, :, position : position + 1]), value[:, :, position : position + 1])
        assert (cache.keys.tensor.data_ptr(), cache.values.data_ptr()) == memory


def test_appending_beyond_the_capacity_raises():
    key, value = sequence()
    cache = empty("number", capacity=7).append(Keys(key), value)
    with pytest.raises(InputError, match="capacity 7"):
        cache.append(Keys(key), value)
    assert cache.values.equal(value)


# The run-time shape checks of the tests cannot be compiled, so this runs in a separate process.
COMPILED = """
import torch
from torch._dynamo.testing import CompileCounter
from qkv.attention import Causal, Keys, StaticKeyValue, attend

key, value = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 5)
counter = CompileCounter()

@torch.compile(fullgraph=True, backend=counter)
def step(cache, key, value):
    cache = cache.append(Keys(key), value)
    mask, start = cache.mask_unfilled(Causal()), cache.first_position(1)
    return attend(key, cache.keys, cache.values, mask=mask, start=start).output, cache

cache, outputs = StaticKeyValue.like(Keys(key), value, 8, torch.tensor(0)), []
for i in range(6):
    output, cache = step(cache, key[:, :, i : i + 1], value[:, :, i : i + 1])
    outputs.append(output)
torch.testing.assert_close(torch.cat(outputs, dim=2), attend(key, key, value, mask=Causal()).output)
assert counter.frame_count == 1, counter.frame_count
"""


def test_tensor_lengths_compile_only_once():
    process = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]

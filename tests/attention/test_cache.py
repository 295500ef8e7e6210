"""Caches keep what was put into them, and show nothing else."""

import subprocess
import sys

import pytest
import torch

from qkv.attention import Causal, Keys, KeyValue, StaticKeyValue, Window, attend
from qkv.errors import InputError
from qkv.nn.state import select


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
def test_what_was_put_in_piece_by_piece_is_what_comes_out(kind):
    key, value = sequence()
    cache = empty(kind)
    for first, last in ((0, 1), (1, 4), (4, 6)):
        cache = cache.followed_by(Keys(key[:, :, first:last]), value[:, :, first:last])
    assert int(cache.length) == 6
    assert cache.keys.tensor[:, :, :6].equal(key)
    assert cache.values[:, :, :6].equal(value)
    assert cache.keys.tensor[:, :, 6:].eq(0).all()
    assert cache.values.shape[2] == (8 if kind == "tensor" else 6)


@pytest.mark.parametrize("mask", [Causal(), None, Window(1, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_queries_meet_the_tokens_so_far_and_no_memory_behind_them(kind, mask):
    key, value = sequence()
    query = key.flip(0)
    cache = empty(kind)
    for first, last in ((0, 2), (2, 3), (3, 6)):
        cache = cache.followed_by(Keys(key[:, :, first:last]), value[:, :, first:last])
        found = attend(
            query[:, :, first:last],
            cache.keys,
            cache.values,
            mask=cache.masked(mask),
            start=cache.start(last - first),
        )
        expected = attend(query[:, :, first:last], key[:, :, :last], value[:, :, :last], mask=mask)
        torch.testing.assert_close(found.output, expected.output)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_can_be_picked_and_go_their_own_ways(kind):
    key, value = sequence()
    cache = empty(kind).followed_by(Keys(key[:, :, :3]), value[:, :, :3])
    picked = select(cache, torch.tensor([1, 1, 0]))
    assert int(picked.length) == 3
    assert picked.keys.tensor[:, :, :3].equal(key[[1, 1, 0], :, :3])
    further = picked.followed_by(Keys(key[[0, 1, 0], :, 3:4]), value[[0, 1, 0], :, 3:4])
    assert further.values[:, :, 3].equal(value[[0, 1, 0], :, 3])
    assert cache.values[:, :, 3:].eq(0).all()


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_static_memory_is_never_allocated_again(kind):
    key, value = sequence()
    cache = empty(kind)
    memory = cache.key.data_ptr(), cache.value.data_ptr()
    for place in range(6):
        cache = cache.followed_by(Keys(key[:, :, place : place + 1]), value[:, :, place : place + 1])
        assert (cache.keys.tensor.data_ptr(), cache.values.data_ptr()) == memory


def test_what_does_not_fit_is_refused_in_words():
    key, value = sequence()
    cache = empty("number", capacity=7).followed_by(Keys(key), value)
    with pytest.raises(InputError, match="room for 7 tokens, 6 are in it, and 6 more do not fit"):
        cache.followed_by(Keys(key), value)
    assert cache.values.equal(value)


# What checks shapes in tests cannot be compiled: this runs in a process of its own.
COMPILED = """
import torch
from torch._dynamo.testing import CompileCounter
from qkv.attention import Causal, Keys, StaticKeyValue, attend

key, value = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 5)
counter = CompileCounter()

@torch.compile(fullgraph=True, backend=counter)
def step(cache, key, value):
    cache = cache.followed_by(Keys(key), value)
    return attend(key, cache.keys, cache.values, mask=cache.masked(Causal()), start=cache.start(1)).output, cache

cache, found = StaticKeyValue.like(Keys(key), value, 8, torch.tensor(0)), []
for place in range(6):
    output, cache = step(cache, key[:, :, place : place + 1], value[:, :, place : place + 1])
    found.append(output)
torch.testing.assert_close(torch.cat(found, dim=2), attend(key, key, value, mask=Causal()).output)
assert counter.frame_count == 1, counter.frame_count
"""


def test_one_compilation_serves_every_length_that_is_a_tensor():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

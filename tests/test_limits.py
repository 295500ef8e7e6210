"""Tests of the limits that other tests use."""

import re

import pytest
import torch

from tests.limits import count_calls, cpu_limit, memory_limit


@pytest.mark.parametrize(
    "hang", [lambda: all(iter(lambda: True, False)), lambda: re.match(r"(a*)*b", "a" * 60)], ids=["loop", "pattern"]
)
def test_a_block_that_does_not_end_exceeds_its_cpu_limit(hang):
    with pytest.raises(pytest.fail.Exception, match="CPU"), cpu_limit(0.05):
        hang()


def test_a_large_allocation_exceeds_the_memory_limit():
    with memory_limit(2**25):
        torch.empty(2**20, dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="memory"):
            torch.empty(2**27, dtype=torch.uint8)
    torch.empty(2**27, dtype=torch.uint8)


def test_calls_of_python_and_c_functions_are_counted():
    ten, hundred = (count_calls(lambda n=n: [abs(number) for number in range(n)]) for n in (10, 100))
    assert hundred - ten == 90

"""The run-time checks find every error that jaxtyping and beartype find, and repeat no check."""

from dataclasses import dataclass
from typing import Literal

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.attention import attend
from tests.shape_checks import LONGEST, check_once

checked = check_once(typechecker=beartype.beartype)
TypeCheckError = jaxtyping.TypeCheckError


@checked
def add(
    x: Float[Tensor, "batch dim"], y: Float[Tensor, "batch dim"], result: object = None
) -> Float[Tensor, "batch dim"]:
    return x + y if result is None else result


def test_arguments_are_checked_after_calls_that_passed():
    x = torch.ones(2, 3)
    for _ in range(3):
        assert add(x, x).shape == (2, 3)
    for y in (torch.ones(1, 3), torch.ones(3), torch.ones(2, 3, dtype=torch.long), 1.0, None):
        for _ in range(2):
            with pytest.raises(TypeCheckError):
                add(x, y)
    assert add(x, y=x).shape == (2, 3)
    with pytest.raises(TypeCheckError):
        add(x, y=x[:1])


def test_results_are_checked_after_calls_that_passed():
    x = torch.ones(2, 3)
    for _ in range(3):
        add(x, x, torch.zeros(2, 3))
    for result in (torch.zeros(1, 3), torch.zeros(2, 3, dtype=torch.long), "text"):
        for _ in range(2):
            with pytest.raises(TypeCheckError):
                add(x, x, result)
    # With the same types of arguments, but another result:
    result = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 2)]

    @checked
    def next_result(x: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        return result.pop(0)

    next_result(x)
    next_result(x)
    with pytest.raises(TypeCheckError):
        next_result(x)


def test_a_check_is_not_repeated():
    calls = []

    def count_checks(function):
        def counted(*args, **kwargs):
            calls.append(function.__name__)
            return beartype_function(*args, **kwargs)

        beartype_function = beartype.beartype(function)
        return counted

    @check_once(typechecker=count_checks)
    def double(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return 2 * x

    for size in (1, 2, 3):
        double(torch.ones(size))
        double(torch.ones(size))
    before = len(calls)
    for size in (1, 2, 3):
        assert double(torch.ones(size)).tolist() == [2.0] * size
    assert len(calls) == before > 0


def test_values_of_a_literal_are_checked():
    @checked
    def choose(name: Literal["a", "b"], count: int = 0) -> str:
        return name

    assert choose("a") == choose("a") == "a"
    assert choose("b", 2) == "b"
    with pytest.raises(TypeCheckError):
        choose("c")


@pytest.mark.parametrize("count", [1, 2, LONGEST + 1])
def test_items_of_lists_and_tuples_are_checked(count):
    @checked
    def total(pairs: list[tuple[Float[Tensor, "n"], Int[Tensor, "n"]]]) -> Float[Tensor, ""]:
        return sum((x.sum() for x, _ in pairs), torch.zeros(()))

    pair, wrong = (torch.ones(2), torch.ones(2).long()), (torch.ones(2), torch.ones(3).long())
    for _ in range(2):
        assert total([pair] * count) == 2 * count
    with pytest.raises(TypeCheckError):
        total([wrong] * count)
    with pytest.raises(TypeCheckError):  # beartype checks a random item of a list in each call
        [total([pair] * count + [wrong]) for _ in range(500)]


def test_fields_of_dataclasses_are_checked():
    @checked
    @dataclass
    class Batch:
        tokens: Int[Tensor, "batch length"]
        lengths: Int[Tensor, "batch"]

    tokens = torch.zeros(2, 3, dtype=torch.long)
    for _ in range(2):
        Batch(tokens, torch.tensor([3, 1]))
    with pytest.raises(TypeCheckError):
        Batch(tokens, torch.tensor([3, 1, 2]))


def test_checks_can_be_disabled(unchecked):
    assert add(torch.ones(2, 3), 1.0).shape == (2, 3)


def test_the_tests_run_with_checks():
    assert attend.is_checked_once

"""Docstrings of the public names: each parameter has a line in "Args:", or in "Attributes:" of a named tuple."""

import inspect
import re
from typing import Any

import pytest

import qkv
import qkv.attention
from qkv.nn.multi_head import MultiHeadAttention

ENTRY = re.compile(r" {4}\*{0,2}(\w+): \S")
PUBLIC: dict[str, Any] = {
    **{f"qkv.{name}": getattr(qkv, name) for name in qkv.__all__ if name != "__version__"},
    **{f"qkv.attention.{name}": getattr(qkv.attention, name) for name in qkv.attention.__all__ if name != "AnyMask"},
    "qkv.nn.MultiHeadAttention": MultiHeadAttention,
}


def documented(*docstrings: str | None) -> set[str]:
    """Return the names in these sections of docstrings."""
    names = set()
    for docstring in docstrings:
        sections = re.split(r"\n(?=(?:Args|Attributes|Returns):\n)", docstring or "")
        for section in sections:
            if section.startswith(("Args:", "Attributes:")):
                names |= {match[1] for line in section.splitlines() if (match := ENTRY.match(line))}
    return names


def parameters(function: Any) -> set[str]:
    return {name for name in inspect.signature(function).parameters if name != "self" and not name.startswith("_")}


def entry_points(value: Any) -> dict[str, tuple[set[str], set[str]]]:
    """Return the parameters, and the documented ones, of each function that a user calls."""
    if not isinstance(value, type):
        return {"": (parameters(value), documented(inspect.getdoc(value)))}
    own = {name for cls in value.__mro__ if cls.__module__.startswith("qkv.") for name in vars(cls)}
    methods = {name: getattr(value, name) for name in ("__call__", "forward") if name in own}
    return {
        "__init__": (
            set() if inspect.isabstract(value) else parameters(value),
            documented(inspect.getdoc(value), inspect.getdoc(value.__init__)),
        ),
        **{name: (parameters(method), documented(inspect.getdoc(method))) for name, method in methods.items()},
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_each_parameter_of_a_public_name_is_documented(name: str):
    missing = {
        f"{name}.{method}".rstrip("."): sorted(expected - found)
        for method, (expected, found) in entry_points(PUBLIC[name]).items()
        if expected - found
    }
    assert not missing


def test_an_undocumented_parameter_is_found():
    def function(first: int, second: int, *, third: int = 0) -> None:
        """Do something: with the second.

        Args:
            first: A number.
                second: not an entry, but the rest of a line.

        Returns:
            third: not a parameter.
        """

    ((expected, found),) = entry_points(function).values()
    assert expected - found == {"second", "third"}

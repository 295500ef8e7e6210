"""Descriptions of config keys: their comments and types."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from qkv.config import (
    Config,
    Count,
    PositiveFloat,
    Rate,
    ScoreTerm,
    Size,
    SizeList,
    StringList,
    Term,
    describe_fields,
    describe_options,
    describe_type,
)


class Base(Config):
    """Two keys."""

    first: int = 1  # the first key
    second: Annotated[
        int,
        Field(ge=1),  # not this comment
    ] = 2  # the second key, on several lines


class Derived(Base):
    """Inherits and overrides."""

    second: int = 3  # overridden
    third: str = "# no comment"
    fourth: Literal["a", "b"] = "a"  # a # and more


def test_meanings_are_the_comments_of_definitions_also_of_inherited_and_long_ones() -> None:
    assert describe_fields(Base) == {"first": "the first key", "second": "the second key, on several lines"}
    assert describe_fields(Derived) == {
        "first": "the first key", "second": "overridden", "third": "", "fourth": "a # and more",
    }  # fmt: skip


def test_a_config_without_source_has_no_meanings() -> None:
    assert describe_fields(Term("score", "additive").options_class) == {"hidden_dim": ""}


def test_meanings_of_options_are_the_comments_of_parameters() -> None:
    assert describe_options(Term("score", "additive")) == {"hidden_dim": "size of the tanh layer"}
    assert describe_options(Term("align", "hard"))["decay"] == "reinforce: decay of the moving average"
    assert describe_options(Term("score", "dot")) == {}


class Types(Config):
    """One key of each type."""

    a: Size = 1
    b: Count | None = None
    c: Rate = 0.0
    d: PositiveFloat = 1.0
    e: Literal["x", "y"] = "x"
    f: StringList = ()
    g: SizeList = ()
    h: bool = True
    i: ScoreTerm = Term("score", "dot")
    j: ScoreTerm | None = None
    k: tuple[tuple[int, int], ...] = ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", "int >= 1"),
        ("b", "int >= 1 or unset"),
        ("c", "float >= 0, < 1"),
        ("d", "float > 0"),
        ("e", "x | y"),
        ("f", "list of str"),
        ("g", "list of int >= 1"),
        ("h", "bool"),
        ("i", "score"),
        ("j", "score or unset"),
        ("k", "list of list of int, int"),
    ],
)
def test_types_in_words(name: str, expected: str) -> None:
    field = Types.model_fields[name]
    assert describe_type(field.annotation, field.metadata) == expected

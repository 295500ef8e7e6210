"""Blocks on top of each other."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

from torch import nn

Block = TypeVar("Block", bound=nn.Module)


class Stack(nn.ModuleList, Generic[Block]):
    """A list of blocks that knows of what kind they are."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__(blocks)

    def __iter__(self) -> Iterator[Block]:
        return cast(Iterator[Block], super().__iter__())

"""A typed nn.ModuleList."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

from torch import nn

Block = TypeVar("Block", bound=nn.Module)


class Stack(nn.ModuleList, Generic[Block]):
    """An nn.ModuleList whose items have a static type."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__(blocks)

    def __iter__(self) -> Iterator[Block]:
        return cast(Iterator[Block], super().__iter__())

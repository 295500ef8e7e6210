"""Run-time checks of shapes and types by jaxtyping and beartype, once for each combination of shapes and types.

A check depends only on the types of the arguments and of the result, on the shapes and dtypes of the tensors among
them, and on the values of arguments annotated with `Literal`. A call with the same ones as an earlier call of the
function is not checked again. Almost all calls in a training or decoding loop are such calls, and checking each would
take several times as long as the small models of the tests.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Collection, Hashable
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

import jaxtyping
from torch import Tensor

LONGEST = 16  # a longer list is not summarized

check_every_call = jaxtyping.jaxtyped  # the decorator of jaxtyping, and its settings
settings = jaxtyping.config


class NoSummaryError(Exception):
    """A list that is long or has items of different types or shapes, of which beartype checks a random one per call."""


class Summary(dict[type, Any]):
    """A function from a value to what a check of it depends on, with one entry for each type of values.

    The entry is None for a type whose values differ in nothing that a check could find.
    """

    def __init__(self, by_value: bool) -> None:
        super().__init__()
        self.by_value = by_value  # compare strings and numbers by value: some are annotated with Literal

    def __missing__(self, kind: type) -> Any:
        self[kind] = entry = self._choose(kind)
        return entry

    def _choose(self, kind: type) -> Any:
        if issubclass(kind, Tensor):
            return lambda tensor: (kind, tensor.dtype, tensor.shape)
        if issubclass(kind, tuple):
            return lambda items: (kind, *self.all(items))
        if issubclass(kind, list | set | frozenset):
            return lambda items: (kind, self.same(items))
        if issubclass(kind, dict):
            return lambda items: (kind, self.same(items.keys()), self.same(items.values()))
        if issubclass(kind, type) or (self.by_value and issubclass(kind, str | int | bytes)):
            return lambda value: (kind, value)
        return None

    def __call__(self, value: Any) -> Hashable:
        kind = type(value)
        entry = self[kind]
        return kind if entry is None else entry(value)

    def all(self, values: Collection[Any]) -> tuple[Hashable, ...]:
        """Return the summary of each value."""
        if len(values) > LONGEST:
            raise NoSummaryError
        return tuple([kind if (entry := self[kind := type(value)]) is None else entry(value) for value in values])

    def same(self, values: Collection[Any]) -> Hashable:
        """Return the number of values and their common summary."""
        summaries = self.all(values)
        if len({*summaries}) > 1:
            raise NoSummaryError
        return len(summaries), *summaries[:1]


TYPES, TYPES_AND_VALUES = Summary(by_value=False), Summary(by_value=True)


def install(packages: list[str]) -> None:
    """Check the functions and dataclasses of these packages, which must not have been imported yet."""
    jaxtyping.jaxtyped = check_once
    jaxtyping.install_import_hook(packages, "beartype.beartype")


def check_once(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator like `jaxtyping.jaxtyped(typechecker=...)` that repeats no check."""

    def decorate(target: Any) -> Any:
        if isinstance(target, FunctionType):
            return _wrap(target, typechecker)
        if is_dataclass(target) and not hasattr(target.__init__, "is_checked_once"):
            target.__init__ = _wrap(target.__init__, typechecker)
        return target

    return decorate


def _wrap(function: Callable[..., Any], typechecker: Callable[..., Any]) -> Callable[..., Any]:
    annotations = function.__annotations__.values()
    by_value = any(isinstance(hint, str) or "Literal[" in repr(hint) for hint in annotations)
    summary = TYPES_AND_VALUES if by_value else TYPES
    passed: dict[Hashable, set[Hashable]] = {}  # inputs, and the outputs that were checked with them
    outputs: list[Any] = []  # to be checked
    lock = threading.RLock()

    @functools.cache
    def checked() -> Callable[..., Any]:
        """Return the function with checks before and after each call. It is built at the first call."""
        return check_every_call(typechecker=typechecker)(function)

    @functools.cache
    def checked_output() -> Callable[..., Any]:
        """Return the same checks around a function that returns an output of the function."""

        def last_output(*args: Any, **kwargs: Any) -> Any:
            return outputs[-1]

        copy = FunctionType(
            last_output.__code__, function.__globals__, function.__name__, None, last_output.__closure__
        )
        copy.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        return check_every_call(typechecker=typechecker)(copy)

    def check_output(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        __tracebackhide__ = True
        with lock:
            outputs.append(output)
            try:
                checked_output()(*args, **kwargs)
            finally:
                outputs.pop()

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if settings.jaxtyping_disable:
            return function(*args, **kwargs)
        try:
            inputs = summary.all(args)
            if kwargs:
                inputs = (*inputs, *kwargs, *summary.all(kwargs.values()))
        except NoSummaryError:
            return checked()(*args, **kwargs)
        known = passed.get(inputs)
        if known is None:
            output = checked()(*args, **kwargs)
            passed[inputs] = set()
            return output
        output = function(*args, **kwargs)
        try:
            result = summary(output)
        except NoSummaryError:
            check_output(output, args, kwargs)
            return output
        if result not in known:
            check_output(output, args, kwargs)
            known.add(result)
        return output

    wrapper.is_checked_once = True  # type: ignore[attr-defined]
    return wrapper

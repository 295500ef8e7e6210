"""What scores, align functions, positions, encodings and masks have in common: a short repr and signatures."""

import inspect
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from torch import nn

from qkv.types import Tensor


class AttentionTerm:
    """Base class of the terms of attention: `repr` gives the arguments of the constructor that are not defaults.

    They are the attributes with the names of the parameters: `Additive(query_dim=64, key_dim=64, hidden_dim=32)`.
    """

    initial_options: tuple[str, ...] = ()  # options that only determine the initial values of parameters

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__repr__ in (nn.Module.__repr__, AttentionTerm.__repr__):
            cls.__repr__ = AttentionTerm.__repr__  # type: ignore[method-assign]  # that of a dataclass would replace it
        for name in ("__init__", "from_sizes"):
            function = getattr(vars(cls).get(name), "__func__", vars(cls).get(name))
            if function is not None:
                function.__signature__ = _without_ranges(inspect.signature(function))

    def __repr__(self) -> str:
        parameters = inspect.signature(type(self)).parameters.values()
        shown = [f"{each.name}={_short(getattr(self, each.name))}" for each in parameters if _is_shown(self, each)]
        return f"{type(self).__name__}({', '.join(shown)})"


def _is_shown(term: AttentionTerm, parameter: inspect.Parameter) -> bool:
    """Whether a term has the argument of a parameter, and it is not the default."""
    value = getattr(term, parameter.name, None)
    if isinstance(value, Tensor):
        return True
    built = isinstance(value, nn.Module) and not isinstance(value, AttentionTerm)  # from the argument
    return value is not None and not built and value != parameter.default


def _short(value: object) -> str:
    return f"Tensor{list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _without_ranges(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature with `float` for `PositiveFloat`, whose range `help` would show as an expression."""
    parameters = [each.replace(annotation=_without_range(each.annotation)) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters)


def _without_range(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(_without_range, get_args(annotation)))]  # noqa: UP007  (of types known at run time)
    return annotation

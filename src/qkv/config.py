"""Typed configs: pydantic models read from TOML, JSON and `--set a.b=value`.

Errors name the offending key and the nearest valid one. Data can only set declared fields; it never selects code other
than a registered class by its name.
"""

import ast
import copy
import inspect
import io
import json
import re
import textwrap
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from qkv.errors import ConfigError, InputError
from qkv.registry import lookup, nearest
from qkv.runtime.files import read_regular
from qkv.runtime.text import printable, printable_repr

MAX_TOML_BYTES = 2**20
MAX_INTEGER = 2**53  # largest integer range that float64 represents exactly
MAX_VOCAB_SIZE = 1_000_000

Size = Annotated[int, Field(ge=1, le=2**24)]  # a width, a length or a vocabulary size
VocabSize = Annotated[int, Field(ge=5, le=MAX_VOCAB_SIZE)]  # of a trained tokenizer, special tokens included
Count = Annotated[int, Field(ge=1, le=1024)]  # layers, heads, ...
Budget = Annotated[int, Field(ge=1, le=2**30)]  # bounds memory: tokens of a batch, number of examples
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Integer = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]  # dropout, smoothing, decay of an average
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
StringList = Annotated[tuple[str, ...], Strict(False)]
SizeList = Annotated[tuple[Size, ...], Strict(False)]

T = TypeVar("T")

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _OneLineErrors(ModelMetaclass):
    """Raises the errors of a config built in Python as an InputError of one line, as `build` does."""

    def __call__(cls, *args: Any, **values: Any) -> Any:  # noqa: N805
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise ConfigError(_message(error, cls)) from None


class Config(BaseModel, metaclass=_OneLineErrors):
    """Base class of all configs: frozen, without conversions between types, without unknown keys."""

    registered_name: ClassVar[str]  # name of the class that this config belongs to
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed; the result is validated."""
        return type(self)(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain data, as it is written to TOML and JSON."""
        return self.model_dump(mode="json")


@dataclass(frozen=True)
class Term:
    """A registered class chosen by a config, with its options: `score = { name = "low_rank", rank = 64 }`.

    A term without options may be written as its name: `score = "additive"`.
    """

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cls(self) -> type[Any]:
        """The registered class."""
        return lookup(self.kind, self.name)

    def build(self, *args: Any) -> Any:
        """Build the term: `cls.from_sizes(*args, **options)` if the class has it, else `cls(**options)`."""
        if hasattr(self.cls, "from_sizes"):
            return self.cls.from_sizes(*args, **self.options)
        return self.cls(**self.options)

    def to_data(self) -> str | dict[str, Any]:
        """Return the term as it is written in a recipe."""
        return {"name": self.name, **self.options} if self.options else self.name

    def __hash__(self) -> int:
        return hash((self.kind, self.name, json.dumps(self.options, sort_keys=True)))


def parse_term(kind: str, data: Any) -> Term:
    """Return the term of a name, of a table with a name and options, or of a term; raise ValueError otherwise."""
    if isinstance(data, Term):
        if data.kind != kind:
            raise ValueError(f"must be a {kind}, not the {data.kind} {data.name}")
        data = data.to_data()
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        raise ValueError(f"must be the name of a {kind} or a table with a name, not {printable_repr(data)}")
    options = {key: value for key, value in data.items() if key != "name"}
    try:
        cls = lookup(kind, data["name"])
        factory = "train" if kind == "tokenizer" else "from_sizes"
        config = build(options_of(cls, factory), options, "")  # type: ignore[arg-type]
    except InputError as error:
        raise ValueError(str(error).removeprefix(": ")) from None
    return Term(kind, data["name"], {key: value for key, value in config if key in options})


@cache
def options_of(cls: type[Any], factory: str = "from_sizes") -> type[Config]:
    """Return the options of a registered class as a config.

    They are the keyword-only parameters of the classmethod `factory`, or the parameters of the constructor if the class
    does not define it, that have defaults.
    """
    method = getattr(cls, factory, cls)
    fields: dict[str, Any] = {
        parameter.name: (_annotation(parameter), parameter.default)
        for parameter in inspect.signature(method, eval_str=True).parameters.values()
        if parameter.default is not parameter.empty and (method is cls or parameter.kind is parameter.KEYWORD_ONLY)
    }
    return create_model(cls.__name__, __base__=Config, **fields)


def _annotation(parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; without an annotation, the type of its default value."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return Any if parameter.default is None else type(parameter.default)


def _term(kind: str) -> Any:
    return (PlainValidator(partial(parse_term, kind)), PlainSerializer(Term.to_data))


ScoreTerm = Annotated[Term, *_term("score")]
AlignTerm = Annotated[Term, *_term("align")]
PositionTerm = Annotated[Term, *_term("position")]
EncoderTerm = Annotated[Term, *_term("encoder")]
ImageEncoderTerm = Annotated[Term, *_term("image_encoder")]
TokenizerTerm = Annotated[Term, *_term("tokenizer")]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a missing or malformed file raises InputError."""
    try:
        return tomllib.loads(read_regular(path, MAX_TOML_BYTES).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # ValueError also for integers with thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}") from None


def write_toml(data: Mapping[str, Any]) -> str:
    """Serialize nested plain data as TOML; None values are omitted, as TOML has no null."""
    return tomli_w.dumps(_without_none(data))


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def override(data: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Apply `a.b=value` assignments to a copy of nested data; a value is TOML or a bare word."""
    result = copy.deepcopy(data)
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not all(dotted.strip().split(".")):
            raise InputError(f"--set {printable(assignment)}: expected a.b=value")
        *parents, last = dotted.strip().split(".")
        change: dict[str, Any] = {last: _parse_value(text.strip())}
        for parent in reversed(parents):
            change = {parent: change}
        result = merge(result, change)
    return result


def merge(base: Mapping[str, Any], over: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Merge `over` into `base` recursively: tables key by key, other values are replaced.

    A string below a table is a term without options: `score = "dot"` and `score = { name = "dot" }` are equal. A term
    with another name does not keep the options of the old one.
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, str):
            below = {"name": below}
        if isinstance(value, Mapping) and below is not None and not isinstance(below, Mapping):
            raise InputError(f"{printable(key)} is a value, not a table")
        if not isinstance(value, Mapping) or below is None:
            result[key] = value
        elif depth >= 1 and value.get("name", below.get("name")) != below.get("name"):
            result[key] = dict(value)
        else:
            result[key] = merge(below, value, depth + 1)
    return result


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # a bare word needs no quotes inside shell quotes


def build(cls: type[T], data: Any, where: str, prefix: str = "") -> T:
    """Validate plain data as the config `cls`.

    `where` opens each error message; `prefix` precedes each key in it (e.g. "model.").
    """
    try:
        return _adapter(cls).validate_json(json.dumps(data, default=str))  # type: ignore[arg-type]
    except ValidationError as error:
        raise InputError(f"{where}: {_message(error, cls, prefix)}") from None
    except (ValueError, RecursionError):  # an integer with thousands of digits
        raise InputError(f"{where}: {prefix.rstrip('.')} a number is out of range") from None


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _message(error: ValidationError, cls: Any, prefix: str = "") -> str:
    """Describe the first error of a validation in one line."""
    details = error.errors(include_url=False)[0]
    location = [printable(str(part)) for part in details["loc"] if isinstance(part, str)]
    key = prefix + ".".join(location)
    table, kind, value = key.rpartition(".")[0], details["type"], details["input"]
    dotted = f"{table}." if table else ""
    if kind == "extra_forbidden":
        return f"unknown key {key}{nearest(location[-1], _keys(cls, location[:-1]), dotted)}"
    if kind == "missing":
        return f"missing key {key}"
    if kind in ("model_type", "dataclass_type", "model_attributes_type"):
        return f"{key.rstrip('.') or 'the top level'} must be a table of keys and values"
    if kind == "literal_error":
        options = _choices(cls, location)
        return f"{key} = {printable_repr(value)}{nearest(str(value), options)}"
    if kind == "value_error":
        message = str(details["ctx"]["error"])
        first = re.split(r"\W", message, maxsplit=1)[0]
        is_key = first in _keys(cls, location) or first == "must"
        return f"{key}{'' if first == 'must' else '.' if key and is_key else ': ' if key else ''}".replace(
            "..", "."
        ) + (f" {message}" if first == "must" else message)
    return f"{key} must be {_expected(details)}, not {printable_repr(value)}"


def _expected(details: ErrorDetails) -> str:
    """Return what a value should have been, e.g. "an integer" or "at least 1"."""
    names = {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a string",
        "tuple_type": "a list",
        "dict_type": "a table",
        "greater_than_equal": "at least {ge:,}",
        "greater_than": "greater than {gt}",
        "too_short": "a list of at least {min_length}",
        "too_long": "a list of at most {max_length}",
        "less_than_equal": "at most {le:,}",
        "less_than": "less than {lt}",
    }
    context = details.get("ctx", {})
    message = details["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return names.get(details["type"], message).format(**context)


def _fields(cls: Any, location: Sequence[str]) -> dict[str, Any]:
    """Return the fields of the config at a location inside `cls`."""
    fields = getattr(cls, "model_fields", {})
    for part in location:
        annotation = fields[part].annotation if part in fields else None
        fields = getattr(annotation, "model_fields", {})
    return fields


def _keys(cls: Any, location: Sequence[str]) -> list[str]:
    return list(_fields(cls, location))


def _choices(cls: Any, location: Sequence[str]) -> list[str]:
    """Return the values of a Literal field."""
    annotation = _fields(cls, location[:-1])[location[-1]].annotation
    options = get_args(annotation) if get_origin(annotation) is Literal else get_args(get_args(annotation)[0])
    return [str(option) for option in options]


def describe_fields(cls: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each key of a config: the comment at the end of its definition."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Config) and base is not Config:
            comments |= _trailing_comments(base)
    return {name: comments.get(name, "") for name in cls.model_fields}


def describe_options(cls: type[Any]) -> dict[str, str]:
    """Return the meaning of each option of a registered class: the comment on the line of the parameter."""
    factory = cls.from_sizes if hasattr(cls, "from_sizes") else cls.__init__
    comments = _trailing_comments(factory)
    return {name: comments.get(name, "") for name in options_of(cls).model_fields}  # type: ignore[arg-type]


@cache
def _trailing_comments(definition: Any) -> dict[str, str]:
    """Return the comment on the last line of each annotated name of a class, or of each parameter with a default."""
    try:
        source = textwrap.dedent(inspect.getsource(definition))
    except (OSError, TypeError):  # not defined in a file
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    node = ast.parse(source).body[0]
    names: dict[str, int] = {}
    if isinstance(node, ast.ClassDef):
        fields = (entry for entry in node.body if isinstance(entry, ast.AnnAssign))
        names = {entry.target.id: entry.end_lineno or 0 for entry in fields if isinstance(entry.target, ast.Name)}
    elif isinstance(node, ast.FunctionDef):
        positional, keywords = node.args.args, node.args.kwonlyargs
        options = [*positional[len(positional) - len(node.args.defaults) :], *keywords]
        lines = [option.end_lineno or 0 for option in options]
        names = {option.arg: line for option, line in zip(options, lines, strict=True) if lines.count(line) == 1}
    return {name: comments[line] for name, line in names.items() if line in comments}


def describe_type(annotation: Any, constraints: Sequence[Any] = ()) -> str:
    """Return the type of a key in words, e.g. "int >= 1", "gru | lstm | rnn" or "score"."""
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        return describe_type(annotation, (*constraints, *metadata))
    if annotation is Term:
        validator = next(entry for entry in constraints if isinstance(entry, PlainValidator))
        return str(validator.func.args[0])  # type: ignore[union-attr]  # partial(parse_term, kind)
    if get_origin(annotation) is Literal:
        return " | ".join(str(option) for option in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        members = [describe_type(member, constraints) for member in get_args(annotation) if member is not NoneType]
        return " or ".join([*members, "unset"] if NoneType in get_args(annotation) else members)
    if get_origin(annotation) in (tuple, list):
        member, *rest = (describe_type(member) for member in get_args(annotation) if member is not Ellipsis)
        return f"list of {', '.join([member, *rest])}"
    name = getattr(annotation, "__name__", str(annotation))
    bounds = [bound for entry in constraints for bound in _bounds(entry)]
    return " ".join([name, ", ".join(bounds)]).strip()


def _bounds(constraint: Any) -> Iterator[str]:
    """Yield the bounds of a field; large upper bounds, which only reject mistakes, are omitted."""
    if isinstance(constraint, FieldInfo):
        for entry in constraint.metadata:
            yield from _bounds(entry)
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        bound = getattr(constraint, name, None)
        if bound is not None and abs(bound) < 1024:
            yield f"{sign} {bound:g}"


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless `condition` holds: a check that involves several keys of a config."""
    if not condition:
        raise ConfigError(message)


# Used by configs that are still dataclasses.


def require_known(config: Any, **known: Iterable[str]) -> None:
    """Raise unless each field of a config has one of its valid values."""
    for name, choices in known.items():
        value = getattr(config, name)
        require(value in choices, f"{name} {value!r} is not known{nearest(str(value), choices)}")


def require_meaning(config: Any, meant_for: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    """Raise if a field is set that only applies when another field has certain values."""
    import dataclasses

    for entry in dataclasses.fields(config):
        value, (other, allowed) = getattr(config, entry.name), meant_for.get(entry.name, (entry.name, ()))
        require(
            other == entry.name or value == entry.default or getattr(config, other) in allowed,
            f"{entry.name} = {value!r} does not apply with {other} = {getattr(config, other)!r}: "
            f"omit {entry.name} or set {other} to {' or '.join(allowed)}",
        )


def require_names(label_names: Sequence[str], labels: int) -> None:
    """Raise unless all labels have names or none has."""
    require(len(label_names) in (0, labels), f"there are {len(label_names)} label_names for {labels} labels")

"""Typed configs: pydantic models read from TOML, JSON and `--set a.b=value`.

Errors name the offending key and the nearest valid one. Data can only set declared fields; it never selects code other
than a registered class by its name.
"""

import ast
import copy
import inspect
import io
import json
import math
import re
import textwrap
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

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
from pydantic_core import ErrorDetails

from qkv.errors import ConfigError, InputError
from qkv.registry import lookup, nearest
from qkv.runtime.files import read_regular
from qkv.runtime.text import printable, printable_repr

MAX_TOML_BYTES = 2**20
MAX_INTEGER = 2**53  # largest integer range that float64 represents exactly
MAX_VOCAB_SIZE = 1_000_000

# Integers and floats with a range; a value outside it is an error that names the key.
Size = Annotated[int, Field(ge=1, le=2**24)]  # 1 to 2^24: a width, a length or a vocabulary size
VocabSize = Annotated[int, Field(ge=5, le=MAX_VOCAB_SIZE)]  # 5 to 10^6: of a trained tokenizer, with special tokens
Count = Annotated[int, Field(ge=1, le=1024)]  # 1 to 1024: a number of layers or heads
Budget = Annotated[int, Field(ge=1, le=2**30)]  # 1 to 2^30: bounds memory, such as the tokens of a batch
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INTEGER)]  # 1 to 2^53
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INTEGER)]  # 0 to 2^53
Probability = Annotated[float, Field(ge=0, le=1)]  # 0 to 1, including 1
Rate = Annotated[float, Field(ge=0, lt=1)]  # 0 to 1, excluding 1: dropout, label smoothing, decay of an average
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]  # any but infinity and nan
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # greater than 0, finite
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # at least 0, finite
# Strict(False): accept the lists of TOML and JSON.
StringList = Annotated[tuple[str, ...], Strict(False)]
SizeList = Annotated[tuple[Size, ...], Strict(False)]
TokenIds = Annotated[tuple[NonNegativeInt, ...], Strict(False), Field(max_length=2**12)]

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
        """Return a copy with some values changed; the result is validated. Defaults remain unset."""
        return type(self)(**{**{key: getattr(self, key) for key in self.model_fields_set}, **changes})

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

    @property
    def options_class(self) -> type[Config]:
        """The options of the registered class, as a config."""
        return options_of(self.cls, _factory(self.kind))  # type: ignore[arg-type]

    def to_data(self) -> str | dict[str, Any]:
        """Return the term as it is written in a recipe."""
        return {"name": self.name, **self.options} if self.options else self.name

    def __hash__(self) -> int:
        return hash((self.kind, self.name, json.dumps(self.options, sort_keys=True)))


class _OptionsError(ValueError):
    """Invalid options of a term; its message is written where the key of the term is known."""

    def __init__(self, error: ValidationError, options_class: type[Config]) -> None:
        super().__init__(str(error))
        self.error = error
        self.options_class = options_class


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
        options_class = Term(kind, data["name"]).options_class
    except InputError as error:
        raise ValueError(str(error)) from None
    try:
        config = _adapter(options_class).validate_json(_to_json(options))
    except ValidationError as error:
        raise _OptionsError(error, options_class) from None
    return Term(kind, data["name"], {key: value for key, value in config if key in options})


@cache
def options_of(cls: type[Any], factory: str = "from_sizes") -> type[Config]:
    """Return the options of a registered class as a config.

    They are the keyword-only parameters of the classmethod `factory`, or the parameters of the constructor if the class
    does not define it, that have defaults.
    """
    method = getattr(cls, factory, cls)
    function = cls.__init__ if method is cls else method
    try:
        signature, ranges = inspect.signature(method, eval_str=True), inspect.get_annotations(function, eval_str=True)
    except NameError:  # the annotations name a class that is defined inside a function
        signature, ranges = inspect.signature(method), inspect.get_annotations(function)
    fields: dict[str, Any] = {
        parameter.name: (ranges.get(parameter.name, _annotation(parameter)), parameter.default)
        for parameter in signature.parameters.values()
        if parameter.default is not parameter.empty and (method is cls or parameter.kind is parameter.KEYWORD_ONLY)
    }
    return create_model(cls.__name__, __base__=Config, **fields)


def _factory(kind: str) -> str:
    """Return the name of the classmethod whose parameters are the options of a registered class."""
    return "train" if kind == "tokenizer" else "from_sizes"


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
    return tomli_w.dumps(without_none(data))


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the keys whose value is None, which TOML does not have."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
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
        try:
            result = merge(result, change)
        except InputError as error:
            raise InputError(f"--set {printable(assignment)}: {error}") from None
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
    """Validate plain data as the config or dataclass `cls`.

    `where` opens each error message; `prefix` precedes each key in it (e.g. "model.").
    """
    try:
        _check_numbers(data, prefix.rstrip("."))
        config: T = _adapter(cls).validate_json(_to_json(_name_terms(cls, data)), strict=True, extra="forbid")  # type: ignore[arg-type]
    except ValidationError as error:
        raise InputError(f"{where}: {_message(error, cls, prefix)}") from None
    except ConfigError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: {prefix.rstrip('.') or 'the data'} is nested too deeply") from None
    return config


def _name_terms(cls: Any, data: Any) -> Any:
    """Add the name of the default to a term that has only options: `--set model.encoder.dim=64`."""
    fields = getattr(cls, "model_fields", {})
    if not isinstance(data, Mapping):
        return data
    defaults = {key: field.default for key, field in fields.items() if isinstance(field.default, Term)}
    return {
        key: {"name": defaults[key].name, **defaults[key].options, **value}
        if key in defaults and isinstance(value, Mapping) and "name" not in value
        else value
        for key, value in data.items()
    }


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _to_json(data: Any) -> str:
    """Serialize plain data; dates, which TOML has but no config does, become strings."""
    return json.dumps(data, default=str)


def _check_numbers(data: Any, key: str) -> None:
    """Raise unless all integers in plain data are exact as float64, and no float is NaN."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            _check_numbers(value, f"{key}.{printable(name)}" if key else printable(name))
    elif isinstance(data, list | tuple):
        for value in data:
            _check_numbers(value, key)
    elif isinstance(data, int):
        require(abs(data) <= MAX_INTEGER, f"{key} is out of range: must be between -2^53 and 2^53")
    elif isinstance(data, float):
        require(not math.isnan(data), f"{key} must be a number, not nan")


def _message(error: ValidationError, cls: Any, prefix: str = "") -> str:
    """Describe the first error of a validation in one line that begins with the key."""
    details = error.errors(include_url=False)[0]
    location = [part for part in details["loc"] if isinstance(part, str)]  # without the indices of list items
    parents, name = location[:-1], location[-1] if location else ""
    key = prefix + ".".join(printable(part) for part in location)
    value = printable_repr(details["input"])
    match details["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            table = prefix + "".join(f"{printable(part)}." for part in parents)
            return f"unknown key {key}{nearest(name, _fields(cls, parents), table)}"
        case "missing" | "missing_argument":
            return f"missing key {key}"
        case "model_type" | "dataclass_type":
            return f"{key.rstrip('.') or 'the top level'} must be a table of keys and values"
        case "literal_error":
            word, choices = value.strip("'"), _choices(_fields(cls, parents).get(name))
            return f"{key} = {value}{nearest(word, choices)}"
        case "value_error":
            return _validator_message(details["ctx"]["error"], key, _fields(cls, location))
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return f"{key} must be {_range(_fields(cls, parents).get(name))}, not {value}"
        case "none_required":
            return f"{key} does not apply here: remove it"
        case "json_invalid":
            return f"{key.rstrip('.') or 'the data'} contains text that is not valid Unicode"
    return f"{key} must be {_expected(details)}, not {value}"


def _validator_message(error: ValueError, key: str, fields: Mapping[str, Any]) -> str:
    """Prefix the message of a validator with the key of its field, or of its table with these fields."""
    if isinstance(error, _OptionsError):
        return _message(error.error, error.options_class, f"{key}.")
    message, table = str(error), key.rstrip(".")
    if not table:
        return message
    first_word = re.split(r"\W", message, maxsplit=1)[0]
    separator = "." if first_word in fields else " " if first_word == "must" else ": "
    return f"{table}{separator}{message}"


def _expected(details: ErrorDetails) -> str:
    """Return the valid type of a value, e.g. "an integer"."""
    names = {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a string",
        "tuple_type": "a list",
        "dict_type": "a table",
        "too_short": "a list of at least {min_length}",
        "too_long": "a list of at most {max_length}",
    }
    if details["type"] in names:
        return names[details["type"]].format(**details.get("ctx", {}))
    return details["msg"].removeprefix("Input should be ").removeprefix("a valid ")


def _fields(cls: Any, location: Sequence[str]) -> dict[str, Any]:
    """Return the types of the fields of the config or dataclass at a location inside `cls`; {} for other types."""
    names = getattr(cls, "model_fields", None) or getattr(cls, "__dataclass_fields__", {})
    hints = get_type_hints(cls, include_extras=True) if names else {}
    fields = {name: hints[name] for name in names}
    if not location:
        return fields
    inner = (_fields(part, location[1:]) for part in _parts(fields.get(location[0])))
    return next(filter(None, inner), {})


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield a type, all types that it is composed of, and their metadata."""
    yield annotation
    for part in (*get_args(annotation), *getattr(annotation, "metadata", ())):
        yield from _parts(part)


def _choices(annotation: Any) -> list[str]:
    """Return the values of a Literal."""
    return [str(option) for part in _parts(annotation) if get_origin(part) is Literal for option in get_args(part)]


def _range(annotation: Any) -> str:
    """Return the range of a number, e.g. "between 1 and 1,024"."""
    limits = _limits(annotation)
    finite = {name: limit for name, limit in limits.items() if abs(limit) != MAX_INTEGER} or limits
    if finite.keys() == {"ge", "le"}:
        return f"between {finite['ge']:,} and {finite['le']:,}"
    words = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
    return " and ".join(f"{words[name]} {limit:,}" for name, limit in finite.items())


def _limits(*annotations: Any) -> dict[str, float]:
    """Return the bounds of a number by name: ge, gt, le and lt."""
    parts = [part for annotation in annotations for part in _parts(annotation)]
    return {name: getattr(part, name) for part in parts for name in ("ge", "gt", "le", "lt") if hasattr(part, name)}


def describe_fields(cls: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each key of a config: the comment at the end of its definition."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Config) and base is not Config:
            comments |= _trailing_comments(base)
    return {name: comments.get(name, "") for name in cls.model_fields}


def describe_options(term: Term) -> dict[str, str]:
    """Return the meaning of each option of a term: the comment on the line of the parameter."""
    comments = _trailing_comments(getattr(term.cls, _factory(term.kind), term.cls.__init__))
    return {name: comments.get(name, "") for name in term.options_class.model_fields}


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
        options = keywords or positional[len(positional) - len(node.args.defaults) :]
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
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = _limits(*constraints).items()  # large upper bounds, which only reject mistakes, are omitted
    bounds = [f"{signs[bound]} {limit:g}" for bound, limit in limits if abs(limit) < 1024]
    return " ".join([name, ", ".join(bounds)]).strip()


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless `condition` holds: a check that involves several keys of a config."""
    if not condition:
        raise ConfigError(message)


def require_matrix_size(rows: int, columns: int, key: str = "dim") -> None:
    """Raise ConfigError if a weight matrix whose size depends on `key` has more than 2^34 elements (64 GiB)."""
    require(rows * columns <= 2**34, f"{key}: a matrix of {rows} x {columns} is too large")


def require_names(label_names: Sequence[str], labels: int) -> None:
    """Raise unless all labels have names or none has."""
    require(len(label_names) in (0, labels), f"there are {len(label_names)} label_names for {labels} labels")

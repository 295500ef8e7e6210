"""Configs built from plain data and in Python: valid values and errors."""

import math
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from qkv import registry
from qkv.attention import Score, Sizes
from qkv.config import (
    Config,
    PositionTerm,
    PositiveFloat,
    PositiveInt,
    Probability,
    Rate,
    ScoreTerm,
    Size,
    SizeList,
    StringList,
    Term,
    build,
    merge,
    override,
    parse_term,
    read_toml,
    require,
    write_toml,
)
from qkv.errors import ConfigError, InputError
from qkv.registry import nearest, register
from qkv.training.recipe import Recipe, read_recipe, recipe_names


class Inner(Config):
    rate: float = 0.1
    name: Literal["soft", "hard"] = "soft"

    @model_validator(mode="after")
    def _check(self) -> "Inner":
        require(self.rate > 0, "rate must be positive")
        require(self.rate < 9 or self.name == "soft", "a hard one needs a low rate")
        return self


class Outer(Config):
    size: int
    on: bool = False
    words: StringList = ()
    title: str | None = None
    inner: Inner = Inner()
    other: Inner | None = None
    free: dict[str, Any] = Field(default_factory=dict)


class Numbers(Config):
    size: Size = 1
    most: Size | None = None
    sizes: SizeList = ()
    rate: Rate = 0.0
    share: Probability = 0.0
    lr: PositiveFloat = 1.0
    steps: PositiveInt = 1


class Terms(Config):
    score: ScoreTerm = Term("score", "scaled_dot")
    position: PositionTerm | None = None


def refused(data: Any, cls: type = Outer) -> str:
    with pytest.raises(InputError) as caught:
        build(cls, data, "here")
    return str(caught.value)


def test_data_sets_fields_and_defaults_fill_the_rest() -> None:
    config = build(Outer, {"size": 3, "words": ["a", "b"], "inner": {"rate": 2}, "free": {"x": [1]}}, "here")
    assert config == Outer(size=3, words=("a", "b"), inner=Inner(rate=2.0), free={"x": [1]})
    assert isinstance(config.inner.rate, float)


@pytest.mark.parametrize(
    ("assignment", "nearest_key"),
    [
        ("model.scroe=dot", "model.score"),
        ("train.epoch=3", "train.epochs"),
        ("dtaa=1", "data"),
        ("data.nmae=x", "data.name"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(assignment: str, nearest_key: str) -> None:
    key = assignment.partition("=")[0]
    with pytest.raises(InputError) as caught:
        read_recipe("dates-gru", [assignment])
    assert str(caught.value) == f"recipe dates-gru: unknown key {key} (did you mean {nearest_key}?)"


def test_an_unknown_key_without_a_close_match_lists_the_valid_ones() -> None:
    assert refused({"size": 1, "inner": {"zzzz": 1}}) == "here: unknown key inner.zzzz (known: name, rate)"
    assert refused({"size": 1, "other": {"raet": 1}}) == "here: unknown key other.raet (did you mean other.rate?)"


def test_a_missing_key_is_named() -> None:
    assert refused({"on": True}) == "here: missing key size"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"size": 0}, "size must be between 1 and 16,777,216, not 0"),
        ({"size": 2**24 + 1}, "size must be between 1 and 16,777,216, not 16777217"),
        ({"most": 0}, "most must be between 1 and 16,777,216, not 0"),
        ({"sizes": [3, -1]}, "sizes must be between 1 and 16,777,216, not -1"),
        ({"rate": 1.0}, "rate must be at least 0 and less than 1, not 1.0"),
        ({"share": -0.5}, "share must be between 0 and 1, not -0.5"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"lr": 0}, "lr must be greater than 0, not 0"),
        ({"lr": math.inf}, "lr must be a finite number, not inf"),
    ],
)
def test_a_number_out_of_range_is_reported_with_its_range(data: Any, words: str) -> None:
    assert refused(data, Numbers) == f"here: {words}"
    (key,) = data
    with pytest.raises(ConfigError) as caught:  # the same for a config built in Python
        Numbers(**data)
    assert str(caught.value) == words
    with pytest.raises(ConfigError, match=key):
        Numbers().replace(**data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"size": "3"}, "size must be an integer, not '3'"),
        ({"size": 3.0}, "size must be an integer, not 3.0"),
        ({"size": True}, "size must be an integer, not True"),
        ({"size": None}, "size must be an integer, not None"),
        ({"size": 3, "on": 1}, "on must be true or false, not 1"),
        ({"size": 3, "words": "a.tsv"}, "words must be a list, not 'a.tsv'"),
        ({"size": 3, "words": ["a", 1]}, "words must be a string, not 1"),
        ({"size": 3, "title": 5}, "title must be a string, not 5"),
        ({"size": 3, "inner": {"rate": "fast"}}, "inner.rate must be a number, not 'fast'"),
        ({"size": 3, "inner": {"rate": True}}, "inner.rate must be a number, not True"),
        ({"size": 3, "inner": 7}, "inner must be a table of keys and values"),
        ({"size": 3, "free": [1]}, "free must be a table, not [1]"),
        ([], "the top level must be a table of keys and values"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(data: Any, words: str) -> None:
    assert refused(data) == f"here: {words}"


@pytest.mark.parametrize(
    "thing", ["x" * 10_000, ["x"] * 10_000, "x\n\x1b[31m" * 1000, 16**5000, [16**5000]], ids=range(5)
)
def test_long_values_are_truncated_in_messages(thing: Any) -> None:
    wrong = [{"size": 1, "inner": thing}, {"size": 1, "on": thing}, {"size": 1, "inner": {"name": thing}}]
    wrong += [{thing: 1}] if isinstance(thing, str) else []
    for message in map(refused, wrong):
        assert len(message) < 500
        assert message.isprintable()


def test_an_invalid_choice_names_the_nearest() -> None:
    assert refused({"size": 1, "inner": {"name": "sfot"}}) == "here: inner.name = 'sfot' (did you mean soft?)"
    assert refused({"size": 1, "inner": {"name": []}}) == "here: inner.name = [] (known: hard, soft)"


def test_errors_of_the_config_name_their_table() -> None:
    assert refused({"size": 1, "inner": {"rate": -1}}) == "here: inner.rate must be positive"
    assert refused({"size": 1, "inner": {"rate": 9, "name": "hard"}}) == "here: inner: a hard one needs a low rate"
    assert refused({"rate": 9, "name": "hard"}, Inner) == "here: a hard one needs a low rate"


@pytest.mark.parametrize("rate", [-math.inf, 0])
def test_config_checks_reject_invalid_numbers(rate: float) -> None:
    assert refused({"size": 1, "inner": {"rate": rate}}) == "here: inner.rate must be positive"


@pytest.mark.parametrize("number", [10**400, -(10**400), 16**5000, 2**53 + 1, math.nan], ids=range(5))
def test_numbers_out_of_range_are_errors_in_every_field(number: float) -> None:
    fields = [{"inner": {"rate": number}}, {"free": {"x": [number]}}, {"free": {"x": {"y": number}}}]
    fields += [{"size": number}] if isinstance(number, int) else []
    for data in fields:
        assert len(refused({"size": 1, **data})) < 500


def test_the_largest_integer_is_accepted() -> None:
    assert build(Outer, {"size": -(2**53), "inner": {"rate": 2**53}}, "here").inner.rate == 2.0**53


def test_an_absent_optional_value_may_be_none() -> None:
    assert build(Outer, {"size": 1, "title": None}, "here").title is None


def test_data_can_only_set_declared_fields() -> None:
    for key in ("__class__", "__init__", "__dict__", "size.real", "_target_", "class", "model_config"):
        assert refused({"size": 1, key: "os.system"}).startswith(f"here: unknown key {key}")
    kept = build(Outer, {"size": 1, "title": "os.system", "free": {"_target_": "os.system"}}, "here")
    assert kept.title == "os.system"
    assert kept.free == {"_target_": "os.system"}


def test_a_config_built_in_python_raises_one_line() -> None:
    for values, words in [
        ({}, "missing key size"),
        ({"size": 1.5}, "size must be an integer, not 1.5"),
        ({"size": 1, "worsd": ()}, "unknown key worsd (did you mean words?)"),
        ({"size": 1, "inner": 3}, "inner must be a table of keys and values"),
        ({"size": 1, "on": "x" * 10_000}, f"on must be true or false, not {repr('x' * 10_000)[:200]}..."),
    ]:
        with pytest.raises(ConfigError) as caught:
            Outer(**values)
        assert str(caught.value) == words
    with pytest.raises(ConfigError, match=r"^rate must be positive$"):
        Inner(rate=-1.0)


def test_replace_changes_some_values_and_checks_them() -> None:
    config = Outer(size=1, words=["a"])
    assert config.replace(size=2) == Outer(size=2, words=("a",))
    assert config.size == 1
    with pytest.raises(ConfigError, match="unknown key sise"):
        config.replace(sise=2)


def test_equal_configs_have_equal_hashes() -> None:
    assert hash(Terms(score="dot")) == hash(Terms(score=Term("score", "dot")))
    assert len({Terms(), Terms(score="dot"), Terms(score={"name": "low_rank", "rank": 3})}) == 3


@pytest.mark.parametrize(
    ("data", "term"),
    [
        ("additive", Term("score", "additive")),
        ({"name": "additive"}, Term("score", "additive")),
        ({"name": "low_rank", "rank": 64}, Term("score", "low_rank", {"rank": 64})),
        (Term("score", "low_rank", {"rank": 64}), Term("score", "low_rank", {"rank": 64})),
    ],
)
def test_a_term_is_a_name_or_a_table_with_a_name(data: Any, term: Term) -> None:
    config = Terms(score=data)
    assert config.score == parse_term("score", data) == term
    assert hash(config.score) == hash(term)
    assert build(Terms, tomllib.loads(write_toml(config.to_dict())), "again") == config


def test_a_term_is_written_as_a_name_or_a_table() -> None:
    assert Terms().to_dict() == {"score": "scaled_dot", "position": None}
    config = Terms(score={"name": "low_rank", "rank": 64}, position={"name": "relative"})
    assert config.to_dict() == {"score": {"name": "low_rank", "rank": 64}, "position": "relative"}
    assert Terms(score="low_rank") != Terms(score={"name": "low_rank", "rank": 64})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"score": "dto"}, "score: unknown score 'dto' (did you mean dot?)"),
        ({"score": {"name": "low_rank", "rnk": 3}}, "unknown key score.rnk (did you mean score.rank?)"),
        ({"score": {"name": "low_rank", "rank": "3"}}, "score.rank must be an integer, not '3'"),
        ({"score": {"name": "low_rank", "rank": 0}}, "score.rank must be between 1 and 16,777,216, not 0"),
        ({"score": {"name": "dot", "rank": 3}}, "unknown key score.rank (known: none)"),
        ({"score": 3}, "score must be the name of a score or a table with a name, not 3"),
        ({"score": {"name": ["dot"]}}, "score must be the name of a score or a table with a name"),
        ({"position": "rotery"}, "position: unknown position 'rotery' (did you mean rotary?)"),
    ],
)
def test_an_invalid_term_is_named(data: Any, words: str) -> None:
    assert refused(data, Terms).startswith(f"here: {words}")
    with pytest.raises(ConfigError) as caught:
        Terms(**data)
    assert str(caught.value).startswith(words)


def test_a_term_of_another_kind_is_an_error() -> None:
    with pytest.raises(ConfigError, match="score must be a score, not the position rotary"):
        Terms(score=Term("position", "rotary"))


def test_a_term_builds_its_class_with_its_options() -> None:
    score = Terms(score={"name": "low_rank", "rank": 3}).score.build(Sizes(4, 5, 6, 7))
    assert tuple(score.query_weight.shape) == (1, 4, 3)
    assert Terms(score={"name": "scaled_dot", "scale": 2.0}).score.build(Sizes(4, 4, 4, 4)).scale == 2.0


def test_a_registered_class_of_the_user_is_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_classes", {kind: {**classes} for kind, classes in registry._classes.items()})

    @register("score", "gaussian")
    class Gaussian(Score):
        def __init__(self, width: PositiveFloat = 1.0) -> None:
            super().__init__()
            self.width = width

    config = build(Terms, {"score": {"name": "gaussian", "width": 2}}, "here")
    assert config.score.cls is Gaussian
    assert config.to_dict()["score"] == {"name": "gaussian", "width": 2.0}
    assert refused({"score": {"name": "gaussian", "width": -1}}, Terms) == (
        "here: score.width must be greater than 0, not -1"
    )


@pytest.mark.parametrize(
    ("assignment", "score"),
    [
        ("model.score=dot", "dot"),
        ("model.score.name=dot", {"name": "dot"}),  # another term does not keep the options of the old one
        ("model.score.name=low_rank", {"name": "low_rank", "rank": 3}),
        ("model.score.rank=4", {"name": "low_rank", "rank": 4}),
        ('model.score={ name = "dot" }', {"name": "dot"}),
    ],
)
def test_overrides_of_a_term(assignment: str, score: Any) -> None:
    table = {"model": {"name": "m", "dim": 8, "score": {"name": "low_rank", "rank": 3}}}
    assert override(table, [assignment]) == {"model": {"name": "m", "dim": 8, "score": score}}


def test_an_option_can_be_added_to_a_term_without_options() -> None:
    assert override({"model": {"score": "low_rank"}}, ["model.score.rank=4"]) == {
        "model": {"score": {"name": "low_rank", "rank": 4}}
    }


def test_a_section_keeps_its_other_keys_when_its_name_changes() -> None:
    base = {"task": "translate", "data": {"name": "a", "size": 3}}
    assert merge(base, {"data": {"name": "b"}}) == {"task": "translate", "data": {"name": "b", "size": 3}}
    assert merge(base, {"task": {"label_smoothing": 0.1}})["task"] == {"name": "translate", "label_smoothing": 0.1}
    assert base == {"task": "translate", "data": {"name": "a", "size": 3}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3e-4", 3e-4),
        ("-0.5", -0.5),
        ("true", True),
        ("false", False),
        ('["a", "b"]', ["a", "b"]),
        ("[1, 2]", [1, 2]),
        ("low_rank", "low_rank"),
        ("bpe:8000", "bpe:8000"),
        ("two words", "two words"),
        ('"3"', "3"),
        ("'quoted'", "quoted"),
        ('"', '"'),
        ("[1, 2", "[1, 2"),
        ("", ""),
        ("a=b", "a=b"),
        ("True", "True"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(text: str, value: Any) -> None:
    found = override({}, [f"a.b={text}"])["a"]["b"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("assignment", ["", "a", "=1", ".=1", "a.=1", ".a=1", "a..b=1"])
def test_an_override_without_a_key_is_an_error(assignment: str) -> None:
    with pytest.raises(InputError, match=r"expected a\.b=value"):
        override({}, [assignment])


def test_an_override_cannot_reach_into_a_value() -> None:
    with pytest.raises(InputError, match=r"^--set seed\.x=1: seed is a value, not a table$"):
        override({"seed": 1}, ["seed.x=1"])


def test_overrides_copy_the_data_and_the_last_one_wins() -> None:
    before = {"train": {"lr": 1.0, "day": tomllib.loads("x = 2026-03-05")["x"]}}
    after = override(before, ["train.lr=2", "train.lr=3", "model.new=1"])
    assert before["train"]["lr"] == 1.0
    assert (after["train"]["lr"], after["model"]) == (3, {"new": 1})


texts = st.text(st.characters(codec="utf-8"))  # all that UTF-8 can write: quotes, newlines, NUL, DEL, any script
scalars = st.one_of(texts, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False))
values = st.one_of(scalars, st.lists(scalars, max_size=3))
tables = st.recursive(
    st.dictionaries(texts, values, max_size=4),
    lambda inner: st.dictionaries(texts, st.one_of(values, inner), max_size=3),
    max_leaves=8,
)


@given(tables)
def test_toml_round_trip(data: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(data)) == data


def test_toml_is_exact_for_floats_and_omits_none() -> None:
    text = write_toml({"a": None, "b": {"lr": 1e-3, "big": math.inf, "c": None, "odd": 0.1 + 0.2}})
    assert tomllib.loads(text) == {"b": {"lr": 1e-3, "big": math.inf, "odd": 0.1 + 0.2}}
    assert math.isnan(tomllib.loads(write_toml({"x": math.nan}))["x"])


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_round_trips(name: str) -> None:
    recipe = read_recipe(name, ["seed=7", 'data.folder="C:\\\\new\\\\täble"'])
    assert Recipe.from_table(tomllib.loads(write_toml(recipe.to_dict())), "again") == recipe


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = ", "not valid TOML"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"a = \xff", "not UTF-8 at byte 4"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
    ],
)
def test_a_malformed_toml_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_a_toml_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(InputError, match="is a folder"):
        read_toml(tmp_path)


def test_the_nearest_name_is_suggested_only_if_close() -> None:
    assert nearest("traim", ["train", "test"]) == " (did you mean train?)"
    assert nearest("zzz", ["train", "test"]) == " (known: test, train)"
    assert nearest("zzz", []) == " (known: none)"
    assert nearest("copy", ["copy-lstm", "copy-ntm", "copies"]) == " (did you mean copy-lstm, copy-ntm?)"
    assert nearest("run", [f"run-{number}" for number in range(9)]).endswith("run-3, ...?)")


def test_the_options_of_a_default_term_need_no_name() -> None:
    assert build(Terms, {"score": {"scale": 0.5}}, "here").score == Term("score", "scaled_dot", {"scale": 0.5})
    assert refused({"score": {"rank": 3}}, Terms) == "here: unknown key score.rank (known: scale)"

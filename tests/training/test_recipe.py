"""Recipes: every built-in one is valid, and every mistake is reported."""

import pytest

from qkv.config import read_toml, write_toml
from qkv.errors import InputError
from qkv.training.recipe import Recipe, read_recipe, recipe_names

FINE_TUNE = ("ewt-bert", "images-vit-finetune", "questions-bert", "squadshifts-minilm", "tatoeba-transformer-phrases")


@pytest.mark.parametrize("name", recipe_names())
def test_every_built_in_recipe_is_valid_and_survives_a_round_trip(name, tmp_path):
    recipe = read_recipe(name)
    (tmp_path / "recipe.toml").write_text(write_toml(recipe.to_dict()), encoding="utf-8")
    assert Recipe.from_table(read_toml(tmp_path / "recipe.toml"), "copy") == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_only_recipes_that_fine_tune_require_a_pretrained_model(name, tmp_path):
    recipe = read_recipe(name)
    assert recipe.requires_init == (name in FINE_TUNE)
    if not recipe.requires_init:
        assert recipe.missing_init() is None
        return
    assert recipe.from_scratch is None or not read_recipe(recipe.from_scratch).requires_init
    assert str(recipe.from_scratch or "init") in str(recipe.missing_init())
    assert recipe.replace(init=str(tmp_path)).missing_init() is None
    assert recipe.replace(requires_init=False).missing_init() is None


def test_init_is_a_folder_or_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name, init in (("owner/name", "owner/name"), ("sentiment", "sentiment"), ("bert", str(tmp_path / "bert")),
                       ("runs/bert", str(tmp_path / "runs/bert"))):  # fmt: skip
        assert read_recipe("ewt-bert", [f"init={name}"]).init == init


def test_a_recipe_inherits_that_it_requires_a_pretrained_model(tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "ewt-bert"\n')
    assert "ewt-bert-scratch" in str(read_recipe(str(tmp_path / "mine.toml")).missing_init())


@pytest.mark.parametrize("assignment", ["requires_init=false", "from_scratch=dates-gru"])
def test_that_a_pretrained_model_is_required_can_be_changed_in_a_file_only(tmp_path, assignment):
    key, _, value = assignment.partition("=")
    with pytest.raises(InputError, match=key):
        read_recipe("ewt-bert", [assignment])
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "ewt-bert"\n{key} = {value if value == "false" else repr(value)}\n')
    assert str(getattr(read_recipe(str(path)), key)).lower() == value


def test_the_recipes_of_the_documentation_exist():
    assert {"dates-gru", "dates-transformer", "pairs-gru", "pairs-transformer"} <= set(recipe_names())


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("model.scroe=dot", r"recipe dates-gru: unknown key model\.scroe \(did you mean model\.score\?\)"),
        ("trian.lr=1", r"unknown key trian \(did you mean train\?\)"),
        ("lr=1", r"unknown key lr \(did you mean train\.lr\?\)"),
        ("dropuot=1", r"unknown key dropuot \(did you mean model\.dropout\?\)"),
        ("zzzz=1", r"unknown key zzzz \(known: task, data, model, train, seed, init, requires_init, from_scratch\)"),
        ("train.lr=fast", r"train\.lr must be a number, not 'fast'"),
        ("train.epochs=2.5", r"train\.epochs must be an integer"),
        ("train.decay=cosinus", r"train\.decay = 'cosinus' \(did you mean cosine\?\)"),
        ("train.lr=-1", r"train\.lr must be greater than 0, not -1"),
        ("train.lr=inf", r"train\.lr must be a finite number"),
        ("model.name=[1]", r"model\.name.*\[1\]"),
        ("model.name=rnn_seq2sec", r"model\.name.* 'rnn_seq2sec' \(did you mean rnn_seq2seq\?\)"),
        ("model.source_vocab_size=5", r"model\.source_vocab_size is set by the data"),
        ("model.score=additiv", r"model\.score: unknown score 'additiv' \(did you mean additive\?\)"),
        ("seed=-1", "seed must be between 0 and 2,147,483,647, not -1"),
        ("data.tokenizer.size=3", r"unknown key data\.tokenizer\.size"),
    ],
)
def test_a_mistake_in_a_recipe_is_reported_with_its_key(assignment, words):
    with pytest.raises(InputError, match=words):
        read_recipe("dates-gru", [assignment])


def test_an_unknown_recipe_suggests_the_closest_name():
    with pytest.raises(InputError, match=r"unknown recipe dates-gur \(did you mean dates-gru\?\)"):
        read_recipe("dates-gur")


def test_a_user_recipe_is_read_by_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('task = "translate"\ndata = { name = "dates" }\nmodel = { name = "transformer", dim = 32 }\n')
    assert read_recipe(str(path), ["train.lr=0.5"]).train.lr == 0.5
    with pytest.raises(InputError, match=r"none\.toml: no such file"):
        read_recipe(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("table", "missing", "valid"),
    [
        ('task = "translate"\n', "data.name", "multi30k"),
        ('task = "translate"\ndata = { size = 9 }\nmodel = { name = "transformer" }\n', "data.name", "multi30k"),
        ('task = "translate"\ndata = { name = "dates" }\n', "model.name", "rnn_seq2seq"),
        ('task = "tag"\ndata = { name = "wnut17" }\nmodel = { dim = 8 }\n', "model.name", "bert"),
    ],
)
def test_a_recipe_must_name_its_data_and_its_model(table, missing, valid, tmp_path):
    (tmp_path / "mine.toml").write_text(table, encoding="utf-8")
    with pytest.raises(InputError, match=missing) as caught:
        read_recipe(str(tmp_path / "mine.toml"))
    assert valid in str(caught.value)
    with pytest.raises(InputError):  # a run's recipe is read without `read_recipe`
        Recipe.from_table(read_toml(tmp_path / "mine.toml"), "mine")


@pytest.mark.parametrize("task", ['"translat"', '["translate"]', "3"])
def test_an_unknown_task_is_an_input_error(task, tmp_path):
    (tmp_path / "mine.toml").write_text(f"task = {task}\n", encoding="utf-8")
    with pytest.raises(InputError, match="task"):
        read_recipe(str(tmp_path / "mine.toml"))


def test_a_recipe_can_extend_a_built_in_recipe(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "dates-gru"\nseed = 3\nmodel = { score = "dot" }\n', encoding="utf-8")
    base, recipe = read_recipe("dates-gru"), read_recipe(str(own))
    assert recipe.seed == 3
    assert recipe.model == base.model.replace(score="dot")
    assert (recipe.data, recipe.train) == (base.data, base.train)


@pytest.mark.parametrize("base", ["dates-gur", "../dates-gru", "own.toml"])
def test_a_recipe_can_extend_only_built_in_recipes(base, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(f'extends = "{base}"\n', encoding="utf-8")
    with pytest.raises(InputError, match="extends"):
        read_recipe(str(own))


def test_a_recipe_can_extend_one_that_extends_another(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "multi30k-luong-dot"\nmodel = { score = "general" }\n', encoding="utf-8")
    assert read_recipe(str(own)).model == read_recipe("multi30k-luong-dot").model.replace(score="general")


@pytest.mark.parametrize(
    ("name", "assignment"),
    [
        ("multi30k-plain", "data.strict=true"),
        ("dates-gru", "data.source=fr"),
        ("cmudict-gru", "data.valid_share=0.9"),
        ("bandit-snail", "data.size=100"),
    ],
)
def test_a_key_that_does_not_apply_to_the_data_is_rejected(name, assignment):
    with pytest.raises(InputError, match=f"unknown key {assignment.partition('=')[0]}|does not apply"):
        read_recipe(name, [assignment])

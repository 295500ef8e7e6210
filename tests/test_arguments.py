"""Wrong arguments of the functions of `import qkv`: errors that say what to pass."""

from pathlib import Path

import pytest
import torch
from torch import nn

import qkv
from qkv.errors import InputError, KeywordError, ModelNotFoundError

pytestmark = pytest.mark.usefixtures("unchecked")
TENSOR = torch.zeros(1, 2, 3, 4)


@pytest.mark.parametrize(
    "function", [qkv.load, qkv.view, qkv.compare, qkv.train, qkv.Translator, qkv.ChatBot, qkv.ImageClassifier]
)
def test_a_model_or_recipe_of_another_type_is_an_input_error(function):
    with pytest.raises(InputError, match="not Tensor"):
        function(TENSOR)


def test_explain_of_tensors_names_the_function_of_the_operator():
    with pytest.raises(InputError, match=r"qkv\.attention\.explain"):
        qkv.explain(TENSOR, TENSOR)
    with pytest.raises(InputError, match="source must be a text"):
        qkv.explain("runs/none", TENSOR)


def test_a_network_of_another_library_cannot_be_viewed_but_watched():
    with pytest.raises(InputError, match=r"Linear is not a model of qkv.*qkv\.watch"):
        qkv.view(nn.Linear(2, 2), "hello")
    with pytest.raises(InputError, match="Linear is not a model of qkv"):
        qkv.evaluate(nn.Linear(2, 2), data="pairs.tsv")


@pytest.mark.parametrize("name", ["no-such-model", "./no/such/run"])
def test_a_missing_model_is_also_a_file_that_is_not_found(name: str):
    for function in (qkv.load, qkv.Translator, qkv.view):
        with pytest.raises(FileNotFoundError, match="no such folder") as caught:
            function(name)
        assert isinstance(caught.value, ModelNotFoundError)
        assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(
    ("function", "wrong", "right"),
    [
        (qkv.load, "devise", "device"),
        (qkv.explain, "methd", "method"),
        (qkv.view, "heads", "head"),
        (qkv.evaluate, "num_beam", "num_beams"),
        (qkv.compare, "seed", "seeds"),
        (qkv.Translator, "dtyp", "dtype"),
    ],
)
def test_an_unexpected_keyword_argument_is_a_type_error_that_names_the_right_one(function, wrong, right):
    with pytest.raises(TypeError) as caught:
        function("runs/none", **{wrong: 1})
    assert isinstance(caught.value, KeywordError)
    assert str(caught.value) == f"unexpected keyword argument {wrong!r} (did you mean {right}?)"


def test_an_unexpected_keyword_of_train_names_the_key_of_the_recipe(tmp_path: Path):
    with pytest.raises(KeywordError, match=r"'epoch' \(did you mean epochs\?\)"):
        qkv.train("dates-gru", output=tmp_path / "run", epoch=1)

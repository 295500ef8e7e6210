"""Wrong arguments of the functions of `import qkv`: the error names what to pass."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
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
    for function in (qkv.load, qkv.Translator, qkv.view, qkv.evaluate):
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
    with pytest.raises(KeywordError, match=r"'learning_rate' \(did you mean lr\?\)"):
        qkv.train("dates-gru", learning_rate=0.1, output=tmp_path)
    with pytest.raises(KeywordError, match=r"'epoch' \(did you mean epochs\?\)"):
        qkv.train("dates-gru", output=tmp_path / "run", epoch=1)


def test_arguments_of_pipelines_of_transformers_are_translated(tmp_path: Path):
    translator, generator = qkv.Translator("tatoeba-en-de", device="cpu"), qkv.Generator("shakespeare", device="cpu")
    hints = {"max_length": "max_new_tokens", "beam_size": "num_beams", "temperature": r"sampling=Sampling\(temperature"}
    for name, hint in hints.items():
        with pytest.raises(KeywordError, match=f"did you mean {hint}"):
            translator("Hello.", **{name: 1})
    with pytest.raises(KeywordError, match="did you mean temperature"):
        generator("Hello.", do_sample=True)


@pytest.mark.parametrize("dtype", ["float16", torch.float16])
def test_a_dtype_of_decoding_that_does_not_exist_is_an_input_error(dtype):
    with pytest.raises(InputError, match="bfloat16"):
        qkv.Translator("dates", dtype=dtype, device="cpu")


def test_a_dtype_of_decoding_may_be_a_type_of_pytorch():
    pipelines = (qkv.Translator("dates", dtype=dtype, device="cpu") for dtype in ("bfloat16", torch.bfloat16))
    first, second = (pipeline("5 May 2001") for pipeline in pipelines)
    assert (first.text, first.score) == (second.text, second.score)


def test_a_class_is_registered_under_a_name():
    with pytest.raises(InputError, match="name"):
        qkv.register("score")


@pytest.mark.parametrize("pipeline", [qkv.Translator, qkv.Classifier, qkv.ImageClassifier])
def test_a_missing_model_argument_is_named_with_the_pipeline(pipeline):
    with pytest.raises(KeywordError, match=f"{pipeline.__name__} requires .*'model'"):
        pipeline(device="cpu")


def test_what_is_no_network_is_refused_before_the_with_block():
    with pytest.raises(InputError, match="not int"):
        qkv.watch(5)


def test_a_model_is_not_saved_to_a_file_name(tmp_path: Path):
    with pytest.raises(InputError, match="folder"):
        qkv.save(qkv.load("dates"), tmp_path / "dates.txt")


def test_an_array_of_samples_needs_its_sampling_rate():
    recognizer = qkv.Recognizer("digits", device="cpu")
    samples = np.zeros(800, dtype=np.float32)
    for wrong in (samples, [samples], torch.zeros(800)):
        with pytest.raises(InputError, match="sampling_rate"):
            recognizer(wrong)


def test_an_array_of_pixels_is_an_image():
    captioner = qkv.Captioner("shapes", device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    captions = captioner([pixels, Image.fromarray(pixels), pixels[:, :, 0]])
    assert captioner(pixels).text == captions[0].text == captions[1].text
    for wrong in (pixels.astype(np.float32), pixels.transpose(2, 0, 1), pixels[None]):
        with pytest.raises(InputError, match="uint8"):
            captioner(wrong)

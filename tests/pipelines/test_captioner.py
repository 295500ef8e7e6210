"""Captions of picture files and features, their attention maps, and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from qkv.errors import InputError
from qkv.generation import Sampling
from qkv.hub.model_folder import save_model
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.pipelines.captioner import Captioner
from qkv.pipelines.translator import Translator
from qkv.tokenizers import WordTokenizer
from qkv.tokenizers.trained import END
from qkv.visualize.explorer import build_payload

TOKENIZER = WordTokenizer.train(["a red circle above a small blue square"])
SMALL = {
    "height": 8,
    "width": 12,
    "encoder": {"name": "cnn", "filters": (4, 8)},
    "feature_dim": 6,
    "embedding_dim": 5,
    "hidden_dim": 7,
    "max_length": 9,
}


def make_captioner(**changes: object) -> Captioner:
    torch.manual_seed(0)
    return Captioner(ShowAttendTell(ShowAttendTellConfig(vocab_size=len(TOKENIZER), **SMALL | changes)), TOKENIZER)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    return tmp_path / "scene.png"


def test_a_caption_has_a_map_from_its_tokens_to_the_grid(picture):
    caption = make_captioner()(picture)
    assert caption.source == "scene.png"
    assert "".join(caption.attention[0].rows).strip() == caption.text
    assert 0 < len(caption.attention[0].rows) < 9
    assert caption.grid == (2, 3)
    assert caption.attention[0].columns == ("1,1", "1,2", "1,3", "2,1", "2,2", "2,3")
    assert caption.pixels.shape == (30, 40, 3)  # of the file, not of the model's input
    np.testing.assert_allclose(caption.attention[0].average.sum(axis=1), 1, atol=1e-5)


def test_captions_do_not_depend_on_the_batch(picture, tmp_path):
    Image.new("L", (5, 5), 200).save(tmp_path / "grey.png")
    captioner = make_captioner()
    together = captioner([tmp_path / "grey.png", picture, picture])
    assert [caption.text for caption in together[1:]] == [captioner(picture).text] * 2
    np.testing.assert_allclose(together[1].alignment, captioner(picture).alignment, atol=1e-5)


def test_beam_search_beats_greedy_and_samples_depend_on_the_seed(picture):
    captioner = make_captioner()
    assert captioner(picture, num_beams=20).score >= captioner(picture).score - 1e-6
    samples = [captioner(picture, sampling=Sampling(temperature=5.0, seed=seed)).text for seed in (1, 1, 2, 3, 4)]
    assert samples[0] == samples[1]
    assert len(set(samples)) > 1


def test_several_captions_of_an_image_are_ranked_and_have_their_own_maps(picture):
    captioner = make_captioner()
    first, second = captioner(picture, num_beams=4, num_return_sequences=2)
    assert first.score >= second.score
    assert captioner([picture], num_beams=4)[0].text == first.text
    for caption in (first, second):
        assert "".join(caption.attention[0].rows).strip() == caption.text


def test_a_model_without_attention_has_no_map(picture):
    caption = make_captioner(decoder="tell")(picture)
    assert caption.attention == ()
    assert caption.text


def test_a_caption_can_be_empty(picture):
    captioner = make_captioner()
    with torch.no_grad():
        captioner.model.readout.bias[END] = 1e3
    caption = captioner(picture)
    assert caption.text == ""
    assert caption.attention[0].weights.shape == (1, 0, 6)
    assert build_payload([caption])["examples"][0]["picture"]["kind"] == "caption"
    assert captioner([]) == []


def test_grey_pictures_are_shown_in_grey(picture):
    caption = make_captioner(channels=1)(picture)
    assert (caption.pixels == caption.pixels[..., :1]).all()


def test_each_tensor_of_a_feature_file_gets_a_caption(tmp_path, picture):
    captioner = make_captioner(encoder="features", channels=5, height=2, width=3)
    rng = np.random.default_rng(0)
    save_file({name: rng.standard_normal((5, 2, 3)) for name in ("b.jpg", "a.jpg")}, tmp_path / "found.safetensors")
    captions = captioner([tmp_path / "found.safetensors"])
    assert [caption.source for caption in captions] == ["a.jpg", "b.jpg"]
    assert captions[0].pixels.shape == (2, 3, 3)
    with pytest.raises(InputError, match=r"scene\.png: .*features \[5, 2, 3\]"):
        captioner(picture)
    with pytest.raises(InputError, match=r"a\.jpg is \[5, 2, 3\]"):
        make_captioner()(tmp_path / "found.safetensors")


def test_a_saved_captioner_is_loaded_and_is_not_a_translator(tmp_path, picture):
    captioner = make_captioner()
    save_model(captioner.model, TOKENIZER, tmp_path)
    assert Captioner(tmp_path, device="cpu")(picture).text == captioner(picture).text
    with pytest.raises(InputError, match=r"an encoder-decoder .* is required"):
        Translator(tmp_path, device="cpu")
    with pytest.raises(InputError, match="tokenizer"):
        Captioner(captioner.model)

"""Captions of pictures from files: what is said, where it was read, and what cannot be captioned."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from qkv.data.vocabulary import END, Vocabulary
from qkv.errors import InputError
from qkv.generation import Sampling
from qkv.interop.folder import save_model
from qkv.models.captioner import Config, ShowAttendTell
from qkv.tasks.captioner import Captioner
from qkv.tasks.translator import Translator
from qkv.view.captions import save_captions

VOCABULARY = Vocabulary.train(["a red circle above a small blue square"], "word")
SMALL = {"height": 8, "width": 12, "filters": (4, 8), "features": 6, "embedding": 5, "hidden": 7, "max_length": 9}


def captioner(**changes: object) -> Captioner:
    torch.manual_seed(0)
    return Captioner(ShowAttendTell(Config(len(VOCABULARY), **SMALL | changes)), VOCABULARY)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    return tmp_path / "scene.png"


def test_a_caption_comes_with_a_map_over_the_places_for_each_of_its_tokens(picture):
    found = captioner()(picture)
    assert found.source == "scene.png"
    assert "".join(found.maps[0].rows).strip() == found.text
    assert 0 < len(found.maps[0].rows) < 9
    assert found.grid == (2, 3)
    assert found.maps[0].columns == ("1,1", "1,2", "1,3", "2,1", "2,2", "2,3")
    assert found.pixels.shape == (8, 12, 3)
    np.testing.assert_allclose(found.maps[0].average.sum(axis=1), 1, atol=1e-5)


def test_a_picture_is_told_the_same_alone_and_among_others(picture, tmp_path):
    Image.new("L", (5, 5), 200).save(tmp_path / "grey.png")
    teller = captioner()
    together = teller.caption([tmp_path / "grey.png", picture, picture])
    assert [one.text for one in together[1:]] == [teller(picture).text] * 2
    np.testing.assert_allclose(together[1].alignment, teller(picture).alignment, atol=1e-5)


def test_a_beam_is_no_worse_than_greedy_and_samples_are_drawn_by_their_seed(picture):
    teller = captioner()
    assert teller(picture, beam=20).score >= teller(picture).score - 1e-6
    drawn = [teller(picture, sampling=Sampling(temperature=5.0, seed=seed)).text for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_model_that_tells_without_attending_has_no_map(picture):
    found = captioner(attention="none")(picture)
    assert found.maps == ()
    assert found.text


def test_a_caption_may_be_empty(picture, tmp_path):
    teller = captioner()
    with torch.no_grad():
        teller.model.output.bias[END] = 1e3
    found = teller(picture)
    assert found.text == ""
    assert found.maps[0].weights.shape == (1, 0, 6)
    assert "(nothing)" in save_captions([found], tmp_path / "page.html").read_text()
    assert teller.caption([]) == []


def test_grey_pictures_are_shown_in_grey(picture):
    found = captioner(channels=1)(picture)
    assert (found.pixels == found.pixels[..., :1]).all()


def test_a_file_of_features_has_a_caption_for_each_of_its_tensors(tmp_path, picture):
    teller = captioner(encoder="given", channels=5, height=2, width=3, filters=(32, 64, 128))
    rng = np.random.default_rng(0)
    save_file({name: rng.standard_normal((5, 2, 3)) for name in ("b.jpg", "a.jpg")}, tmp_path / "found.safetensors")
    found = teller.caption([tmp_path / "found.safetensors"])
    assert [one.source for one in found] == ["a.jpg", "b.jpg"]
    assert found[0].pixels.shape == (2, 3, 3)
    with pytest.raises(InputError, match=r"scene\.png: this model reads features \[5, 2, 3\], not pictures"):
        teller(picture)
    with pytest.raises(InputError, match=r"a\.jpg is \[5, 2, 3\], and this model reads pictures \[3, 8, 12\]"):
        captioner()(tmp_path / "found.safetensors")


def test_it_is_loaded_from_its_folder_and_is_no_translator(tmp_path, picture):
    teller = captioner()
    save_model(teller.model, VOCABULARY, tmp_path)
    assert Captioner(tmp_path, device="cpu")(picture).text == teller(picture).text
    with pytest.raises(InputError, match=r"holds a captioner \(for qkv caption\), and an encoder-decoder"):
        Translator(tmp_path, device="cpu")
    with pytest.raises(InputError, match="a captioner needs a vocabulary"):
        Captioner(teller.model)

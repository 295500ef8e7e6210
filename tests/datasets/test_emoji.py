"""Tests of the emoji dataset: names and splits."""

import os

import numpy as np
import pytest

from tests.datasets.build import load

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder of data"),
]


@pytest.fixture(scope="module")
def splits():
    return load("emoji").splits


def test_every_image_is_in_one_split_of_its_vendor(splits):
    assert {name: len(some) for name, some in splits.items()} == {
        "train": 2969, "valid": 405, "test": 412, "test_google": 412, "test_twitter": 2969,
    }  # fmt: skip


def test_no_test_name_is_in_training_in_any_skin_tone(splits):
    names = {
        split: {texts[0].partition(":")[0] for texts in some.texts if "skin tone" in texts[0]}
        for split, some in splits.items()
    }
    assert not names["train"] & names["test"]
    assert not {*splits["train"].texts} & {*splits["test"].texts, *splits["valid"].texts}


def test_images_match_their_names(splits):
    train = splits["train"]
    for name, color in (("red heart", (255, 0, 0)), ("blue square", (0, 0, 255)), ("green heart", (0, 255, 0))):
        for split in ("train", "valid", "test_google", "test_twitter", "test"):
            for texts, picture in zip(splits[split].texts, splits[split].images, strict=True):
                if texts[0] == name:
                    middle = picture[:, 24:40, 24:40].mean(axis=(1, 2))
                    assert middle.argmax() == np.argmax(color), (name, split)
    assert (train.images[:, :, 0, 0].min(axis=1) == 255).mean() > 0.5  # transparent pixels are white

"""Tests of the shapes dataset: images, captions, boxes and reproducibility."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from qkv.datasets.corpora.synthetic import shapes
from qkv.errors import InputError


def test_scenes_depend_on_the_seed_and_a_smaller_size_is_a_prefix():
    many, few, other = (
        shapes.generate(30, split="train"),
        shapes.generate(10, split="train"),
        shapes.generate(30, split="train", seed=1),
    )
    assert (many.images[:10] == few.images).all()
    assert many.texts[:10] == few.texts
    assert many.objects[:10] == few.objects
    assert many.texts != other.texts
    assert len(shapes.generate(0, split="test")) == 0


def test_no_caption_is_in_two_splits():
    train, valid, test = (
        {texts[0] for texts in shapes.generate(400, split=split).texts} for split in ("train", "valid", "test")
    )
    assert not train & valid | train & test | valid & test
    assert min(map(len, (train, valid, test))) > 100


def test_every_object_has_its_color_in_its_box_and_nothing_is_drawn_outside():
    scenes = shapes.generate(200, split="train")
    for picture, texts, objects in zip(scenes.images, scenes.texts, scenes.objects, strict=True):
        words, rest = texts[0].split(" "), picture.astype(int)
        for one in objects:
            top, left, bottom, right = one.box
            named = [words[number] for number in one.words]
            assert bottom - top == right - left == (shapes.SMALL if named[0] == "small" else shapes.LARGE)
            middle = picture[:, (top + bottom) // 2, (left + right) // 2].astype(int)
            nearest = min(shapes.COLORS, key=lambda name: np.abs(middle - shapes.COLORS[name]).sum())
            assert nearest == named[-2]
            assert named[-1] in shapes.SHAPES
            rest[:, top:bottom, left:right] = rest[0, -1, -1]
        assert len(np.unique(rest)) == 1  # the ground


def test_captions_state_the_relation_of_neighbours():
    scenes = shapes.generate(200, split="valid")
    for texts, objects in zip(scenes.texts, scenes.objects, strict=True):
        words = texts[0].split(" ")
        assert {words[one.words[0] - 1] for one in objects} == {"a"}
        for before, after in pairwise(objects):
            between = " ".join(words[before.words[-1] + 1 : after.words[0] - 1])
            middles = [((one.box[0] + one.box[2]) / 2, (one.box[1] + one.box[3]) / 2) for one in (before, after)]
            (y, x), (below, right) = middles
            assert between == ("above" if below - y > 10 else "left of")
            assert below - y > 10 or right - x > 10


def test_shapes_differ_in_their_masks():
    filled = {name: int(shapes.SHAPE_MASKS[name, shapes.LARGE].sum()) for name in shapes.SHAPES}
    assert filled["square"] == shapes.LARGE**2
    for side in (shapes.SMALL, shapes.LARGE):
        for one, other in combinations(shapes.SHAPES, 2):
            differ = (shapes.SHAPE_MASKS[one, side] != shapes.SHAPE_MASKS[other, side]).mean()
            assert differ > 0.15, (one, other, side)
    assert filled["circle"] == pytest.approx(np.pi * shapes.LARGE**2 / 4, rel=0.05)


def test_too_large_sizes_are_rejected():
    with pytest.raises(InputError, match="10,000,000"):
        shapes.generate(10_000_000, split="train")

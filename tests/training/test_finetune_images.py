"""Fine-tuning a released ViT: its normalization becomes part of its first layer."""

import json

import pytest
import torch

from qkv.hub import save_model
from qkv.models.vit import ViT, ViTConfig
from qkv.pipelines.inputs.image_preprocessing import Scale, scale_pixels
from qkv.training.finetune import fold_scale, load_pretrained, with_image_size
from qkv.training.recipe import read_recipe

SIZES = {"dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "patch": 4, "height": 12, "width": 12, "classes": 3}
IMAGENET = Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize("scale", [IMAGENET, Scale((0.0,), (1.0,)), Scale()])
def test_a_model_with_a_folded_scale_takes_pixels_from_minus_one_to_one(scale):
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SIZES)).eval().double()
    pixels = torch.randint(256, (5, 3, 12, 12), dtype=torch.uint8)
    expected = model((pixels.double() / 255 - torch.tensor(scale.mean).double()[:, None, None])
                     / torch.tensor(scale.std).double()[:, None, None])  # fmt: skip
    fold_scale(model, scale)
    torch.testing.assert_close(model(scale_pixels(pixels).double()), expected, rtol=1e-5, atol=1e-5)


def test_init_sets_the_image_size_and_its_normalization_is_folded(tmp_path):
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SIZES))
    save_model(model, None, tmp_path)
    assert load_pretrained(read_recipe("images-vit-finetune", [f"init={tmp_path}"])).patch_embed.weight.equal(
        model.patch_embed.weight
    )
    statistics = {"image_mean": list(IMAGENET.mean), "image_std": list(IMAGENET.std)}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(statistics))
    recipe = with_image_size(read_recipe("images-vit-finetune", [f"init={tmp_path}", 'data.train=["photos"]']))
    assert (recipe.data.side, recipe.data.channels) == (12, 3)
    loaded = load_pretrained(recipe)
    torch.testing.assert_close(
        loaded.patch_embed.weight, model.patch_embed.weight / (2 * torch.tensor(IMAGENET.std)[:, None, None])
    )
    kept = read_recipe("images-vit-finetune", [f"init={tmp_path}", "data.side=8"])
    assert with_image_size(kept).data.side == 8

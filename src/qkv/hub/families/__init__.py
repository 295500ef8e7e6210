"""Supported families of released models, by the model_type of their config.json."""

from dataclasses import replace

from qkv.hub.families import bert, gpt2, marian, vit
from qkv.hub.weight_map import Family
from qkv.tokenizers.pretrained import read_tokenizer


def _with_tokenizer(family: Family) -> Family:
    return replace(family, read_tokenizer=lambda folder, config: read_tokenizer(folder, family.model_type))


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (*map(_with_tokenizer, (bert.FAMILY, gpt2.FAMILY, marian.FAMILY)), vit.FAMILY)
}

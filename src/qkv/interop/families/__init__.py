"""Supported families of released models, by the model_type of their config.json."""

from dataclasses import replace

from qkv.data.pretrained import read_tokenizer
from qkv.interop.families import bert, gpt2, marian, vit
from qkv.interop.weight_map import Family


def _with_tokenizer(family: Family) -> Family:
    return replace(family, read_tokenizer=lambda folder, config: read_tokenizer(folder, family.model_type))


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (*map(_with_tokenizer, (bert.FAMILY, gpt2.FAMILY, marian.FAMILY)), vit.FAMILY)
}

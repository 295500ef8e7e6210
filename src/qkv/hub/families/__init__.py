"""Supported families of released models, by the model_type of their config.json."""

from qkv.hub.families import bert, gpt2, marian, vit
from qkv.hub.weight_map import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (bert.FAMILY, gpt2.FAMILY, marian.FAMILY, vit.FAMILY)
}

"""Supported families of released models, by the model_type of their config.json."""

from qkv.hub.families import bert, gpt2, llama, marian, pegasus, vit, whisper
from qkv.hub.families.ctranslate2 import find_ctranslate2
from qkv.hub.families.elmo import find_elmo
from qkv.hub.families.llama2c import find_llama2c
from qkv.hub.weight_map import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (bert.FAMILY, gpt2.FAMILY, llama.FAMILY, marian.FAMILY, pegasus.FAMILY, vit.FAMILY, whisper.FAMILY)
}
# Formats without a model_type in config.json: functions from a path to the model in it, or None.
ORIGINALS = (find_elmo, find_llama2c, find_ctranslate2)

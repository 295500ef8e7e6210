"""The tokenizers of a model of our own: learned here or released, one for all texts or one for each side.

They are in tokenizer.json, and that of the target side, where it is another, in target_tokenizer.json. A released one
is told by special_tokens_map.json, which says what its special tokens are for.
"""

import json
import os
from pathlib import Path
from typing import Any

from qkv.data.pretrained import MAX_FILE_BYTES, PretrainedTokenizer, TwoTokenizers
from qkv.data.vocabulary import AnyVocabulary, TwoVocabularies, Vocabulary
from qkv.errors import CheckpointError
from qkv.interop.document import read_object, read_text, reading

AnyTokenizer = AnyVocabulary | PretrainedTokenizer | TwoTokenizers

TOKENIZER, TARGET_TOKENIZER, SPECIAL = "tokenizer.json", "target_tokenizer.json", "special_tokens_map.json"
ROLES = {"pad": "pad_token", "unknown": "unk_token", "begin": "bos_token", "end": "eos_token", "mask": "mask_token"}


def write_vocabulary(tokenizer: AnyTokenizer, folder: Path) -> None:
    source, target = _sides(tokenizer)
    (folder / TOKENIZER).write_text(source.to_json(), encoding="utf-8")
    if target is not source:
        (folder / TARGET_TOKENIZER).write_text(target.to_json(), encoding="utf-8")
    if isinstance(source, PretrainedTokenizer):
        names = {ROLES[role]: name for role, name in source.names.items()}
        (folder / SPECIAL).write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")


def read_vocabulary(folder: Path) -> Any:
    """The tokenizer of a saved model, or the two that it has."""
    released = os.path.lexists(folder / SPECIAL)
    source = _read(folder / TOKENIZER, released)
    if not os.path.lexists(folder / TARGET_TOKENIZER):
        return source
    target = _read(folder / TARGET_TOKENIZER, released)
    return TwoTokenizers(source, target) if released else TwoVocabularies(source, target)


def _read(path: Path, released: bool) -> Any:
    with reading(path):
        text = read_text(path, MAX_FILE_BYTES)
        if not released:
            return Vocabulary.from_json(text, str(path))
        said = read_object(path.parent / SPECIAL)
        names = {role: said[key] for role, key in ROLES.items() if isinstance(said.get(key), str)}
        return PretrainedTokenizer.from_json(text, str(path), names)


def check_room(folder: Path, tokenizer: AnyTokenizer, config: Any) -> None:
    """Raise where a tokenizer has numbers for which the model has no place."""
    source, target = _sides(tokenizer)
    second = TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).exists() else TOKENIZER
    sizes = {
        "source_size": (source, TOKENIZER),
        "target_size": (target, second),
        "vocabulary_size": (source, TOKENIZER),
    }
    for key, (side, file) in sizes.items():
        room = getattr(config, key, None)
        if room is not None and len(side) > room:
            where = folder / file if (folder / file).exists() else folder
            raise CheckpointError(f"{where}: has {len(side):,} tokens, but the model has room for {room:,}")


def _sides(tokenizer: AnyTokenizer) -> tuple[Any, Any]:
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer, tokenizer
    return tokenizer.source, tokenizer.target

"""Read and write the tokenizers of saved models: trained or released, shared or one per side.

The files are tokenizer.json and, for a separate target side, target_tokenizer.json. A released tokenizer is marked by
special_tokens_map.json, which maps the roles of its special tokens.
"""

import json
import os
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError
from qkv.runtime.documents import read_object, read_text, reading
from qkv.tokenizers.pretrained import MAX_FILE_BYTES, PretrainedTokenizer, TwoTokenizers
from qkv.tokenizers.vocabulary import AnyVocabulary, TwoVocabularies, Vocabulary

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
    """Read the tokenizer, or the source and target tokenizers, of a saved model."""
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
        special = read_object(path.parent / SPECIAL)
        names = {role: special[key] for role, key in ROLES.items() if isinstance(special.get(key), str)}
        return PretrainedTokenizer.from_json(text, str(path), names)


def check_vocab_size(folder: Path, tokenizer: AnyTokenizer, config: Any) -> None:
    """Raise if a tokenizer has more tokens than the model's embedding."""
    source, target = _sides(tokenizer)
    target_file = TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).exists() else TOKENIZER
    sizes = {
        "source_vocab_size": (source, TOKENIZER),
        "target_vocab_size": (target, target_file),
        "vocab_size": (source, TOKENIZER),
    }
    for key, (side, file) in sizes.items():
        vocab_size = getattr(config, key, None)
        if vocab_size is not None and len(side) > vocab_size:
            where = folder / file if (folder / file).exists() else folder
            raise CheckpointError(f"{where}: {len(side):,} tokens, but the model's vocabulary size is {vocab_size:,}")


def _sides(tokenizer: AnyTokenizer) -> tuple[Any, Any]:
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer, tokenizer
    return tokenizer.source, tokenizer.target

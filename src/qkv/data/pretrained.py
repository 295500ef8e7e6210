"""Tokenizers from the files that models were released with. Nothing in them is trusted, and nothing in them is code."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from qkv.config import shown
from qkv.data.sentencepiece import SentencePieces
from qkv.data.tokenizer import (
    Encoded,
    PretrainedTokenizer,
    Roles,
    TwoTokenizers,
    checked_numbers,
    of_the_library,
    parse_large_json,
)
from qkv.data.tokenizer_limits import MAX_TOKEN_CHARS, MAX_TOKENS
from qkv.errors import CheckpointError
from qkv.runtime.document import read_bytes, read_text

__all__ = ["Encoded", "PretrainedTokenizer", "Roles", "TwoTokenizers", "read_tokenizer"]

TOKENIZER, CONFIG, SPECIAL, ADDED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
T = TypeVar("T", bound=bool | None)

LARGEST_FILE = 2**26  # bytes; Gemma's tokenizer.json, with 262,144 tokens, has 33 million
LARGEST_SPM = 2**24
ROLES = {  # what the files call the roles
    "pad_token": "pad",
    "unk_token": "unknown",
    "bos_token": "begin",
    "cls_token": "begin",
    "eos_token": "end",
    "sep_token": "end",
    "mask_token": "mask",
}


def read_tokenizer(folder: Path, model_type: str) -> PretrainedTokenizer | TwoTokenizers | None:
    """The tokenizer of a released model, or the two that a translator has; None where it has no files of one."""
    if model_type == "marian" and os.path.lexists(folder / "source.spm"):
        return _marian(folder)
    if os.path.lexists(folder / TOKENIZER):
        where = folder / TOKENIZER
        return PretrainedTokenizer.from_json(read_text(where, LARGEST_FILE), str(where), _names(folder))
    for files, read in READERS.get(model_type, ()):
        if all(os.path.lexists(folder / name) for name in files):
            return read(folder, *(folder / name for name in files))
    return None


def _wordpiece(folder: Path, path: Path) -> PretrainedTokenizer:
    """BERT's: words of the vocabulary, and pieces of words that begin with "##" (Devlin et al. 2019)."""
    tokens = _lines(path)
    numbers = checked_numbers({token: number for number, token in enumerate(tokens)}, str(path))
    names = {"pad": "[PAD]", "unknown": "[UNK]", "begin": "[CLS]", "end": "[SEP]", "mask": "[MASK]"} | _names(folder)
    for role in ("unknown", "begin", "end"):
        if names[role] not in numbers:
            raise CheckpointError(f"{path}: has no {names[role]}")
    config = _object(folder / CONFIG)
    begin, end = names["begin"], names["end"]
    with of_the_library(str(path)):
        tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=names["unknown"]))
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=_flag(config, "do_lower_case", True, folder),
            strip_accents=_flag(config, "strip_accents", None, folder),  # None: where it is in lower case
            handle_chinese_chars=_flag(config, "tokenize_chinese_chars", True, folder),
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[f"{begin}:0", "$A:0", f"{end}:0"],
            pair=[f"{begin}:0", "$A:0", f"{end}:0", "$B:1", f"{end}:1"],
            special_tokens=[(begin, numbers[begin]), (end, numbers[end])],
        )
        return PretrainedTokenizer(_with_special(tokenizer, names, folder), names)


def _bytes_bpe(folder: Path, vocabulary: Path, merges: Path) -> PretrainedTokenizer:
    """GPT-2's: pairs of bytes, merged in the order of a list (Radford et al. 2019)."""
    numbers = checked_numbers(_json(vocabulary), str(vocabulary))
    lines = [line for line in _lines(merges) if line and not line.startswith("#version")]
    pairs = []
    for line in lines:
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise CheckpointError(f"{merges}: {line[:100]!r} is not two parts with a space between them")
        pairs.append((first, second))
    config, names = _object(folder / CONFIG), _names(folder)
    with of_the_library(str(vocabulary)):
        tokenizer = Tokenizer(models.BPE(numbers, pairs))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(_flag(config, "add_prefix_space", False, folder))
        tokenizer.decoder = decoders.ByteLevel()
        _with_special(tokenizer, {"end": "<|endoftext|>"} | names, folder)
    if _flag(config, "add_bos_token", False, folder):
        begin = PretrainedTokenizer(tokenizer, names)
        if begin.roles.begin is None:
            raise CheckpointError(f"{folder / CONFIG}: add_bos_token, but the vocabulary has no such token")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[begin.names["begin"], "$A"],
            pair=[begin.names["begin"], "$A", begin.names["begin"], "$B:1"],
            special_tokens=[(begin.names["begin"], begin.roles.begin)],
        )
    return PretrainedTokenizer(tokenizer, names)


def _marian(folder: Path) -> TwoTokenizers:
    """Marian's: a SentencePiece model for each language, and the numbers of the pieces of both in one file, or two."""
    separate = _flag(_object(folder / CONFIG), "separate_vocabs", False, folder)
    source = folder / "vocab.json"
    target = folder / "target_vocab.json" if separate else source
    return TwoTokenizers(_spm(folder, folder / "source.spm", source), _spm(folder, folder / "target.spm", target))


def _spm(folder: Path, path: Path, vocabulary: Path) -> PretrainedTokenizer:
    numbers = checked_numbers(_json(vocabulary), str(vocabulary))
    names = {"pad": "<pad>", "unknown": "<unk>", "end": "</s>"} | _names(folder)
    for role in ("unknown", "end"):
        if names[role] not in numbers:
            raise CheckpointError(f"{vocabulary}: has no {names[role]}")
    end = names["end"]
    tokenizer = SentencePieces.parse(read_bytes(path, LARGEST_SPM), str(path)).tokenizer(str(path))
    languages = [token for token in numbers if token.startswith(">>") and token.endswith("<<")]
    with of_the_library(str(path)):
        tokenizer.add_special_tokens([name for name in names.values() if name in numbers])
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in languages])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["$A", end], pair=["$A", "$B:1", end], special_tokens=[(end, tokenizer.token_to_id(end))]
        )
        return PretrainedTokenizer(tokenizer, names, numbers)


# The files of each kind of model, in the order they are looked for.
READERS: dict[str, tuple[tuple[tuple[str, ...], Callable[..., PretrainedTokenizer]], ...]] = {
    "bert": ((("vocab.txt",), _wordpiece),),
    "gpt2": ((("vocab.json", "merges.txt"), _bytes_bpe), (("encoder.json", "vocab.bpe"), _bytes_bpe)),
}


def _with_special(tokenizer: Tokenizer, names: Mapping[str, str], folder: Path) -> Tokenizer:
    """Let the tokenizer know which tokens have a role, and those that were added to the vocabulary afterwards."""
    added = _object(folder / ADDED)
    if added:
        numbers = checked_numbers(added, str(folder / ADDED))
        later = sorted((number, token) for token, number in numbers.items() if tokenizer.token_to_id(token) is None)
        for number, token in later:
            if number != tokenizer.get_vocab_size() or not 0 < len(token) <= MAX_TOKEN_CHARS:
                raise CheckpointError(f"{folder / ADDED}: {token[:100]!r} must have the number after the last")
            tokenizer.add_tokens([AddedToken(token, special=token in names.values(), normalized=False)])
    tokenizer.add_special_tokens([name for name in names.values() if tokenizer.token_to_id(name) is not None])
    return tokenizer


def _names(folder: Path) -> dict[str, str]:
    """The tokens with a role, as the folder's files name them; what is not said is left to the usual names."""
    found = {}
    for file in (CONFIG, SPECIAL):  # the second is about nothing else, and is believed
        data = _object(folder / file)
        for key, role in ROLES.items():
            value = data.get(key)
            if isinstance(value, dict):
                value = value.get("content")
            if value is None:
                continue
            if not isinstance(value, str) or not 0 < len(value) <= MAX_TOKEN_CHARS:
                raise CheckpointError(f"{folder / file}: {key} must be the text of a token")
            found[role] = value
    return found


def _flag(config: Mapping[str, Any], key: str, default: T, folder: Path) -> bool | T:
    value = config.get(key)
    if not isinstance(value, bool | None):
        raise CheckpointError(f"{folder / CONFIG}: {key} must be true or false, not {shown(repr(value))}")
    return default if value is None else value


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file, or an empty one where there is no file."""
    if not os.path.lexists(path):
        return {}
    data = _json(path)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return data


def _json(path: Path) -> Any:
    return parse_large_json(read_text(path, LARGEST_FILE), path)


def _lines(path: Path) -> list[str]:
    """The lines of a vocabulary or a list of merges."""
    text = read_text(path, LARGEST_FILE).removesuffix("\n")
    if text.count("\n") >= MAX_TOKENS:
        raise CheckpointError(f"{path}: has more than {MAX_TOKENS:,} lines")
    return text.split("\n")

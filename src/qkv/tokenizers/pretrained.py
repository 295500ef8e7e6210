"""Load the tokenizers of released models. The files are untrusted data, never code."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from qkv.errors import CheckpointError
from qkv.runtime.documents import read_bytes, read_text
from qkv.runtime.text import printable
from qkv.tokenizers.library import (
    MAX_FILE_BYTES,
    PretrainedTokenizer,
    check_token_ids,
    parse_large_json,
    read_names,
    read_object,
    tokenizer_errors,
)
from qkv.tokenizers.limits import MAX_TOKEN_CHARS, MAX_TOKENS
from qkv.tokenizers.pair_tokenizer import PairTokenizer
from qkv.tokenizers.sentencepiece import llama_tokenizer, sentencepiece_tokenizer
from qkv.tokenizers.tokenizer import CONFIG, TOKENIZER, Tokenizer
from qkv.tokenizers.wordpiece import NAMES, wordpiece_backend

ADDED = "added_tokens.json"
MAX_SPM_BYTES = 2**23  # parsed, a file can take 30 times as much; XLM-R has 5 million
T = TypeVar("T", bound=bool | None)


def read_tokenizer(folder: Path, model_type: str) -> Tokenizer | None:
    """Load the tokenizer of a released model, or both of a translator; None if there are no tokenizer files."""
    if model_type == "marian" and os.path.lexists(folder / "source.spm"):
        return _marian(folder)
    if os.path.lexists(folder / TOKENIZER):
        return PretrainedTokenizer.load(folder)
    for files, read in READERS.get(model_type, ()):
        if all(os.path.lexists(folder / name) for name in files):
            return read(folder, *(folder / name for name in files))
    return None


def _wordpiece(folder: Path, path: Path) -> PretrainedTokenizer:
    """Load a WordPiece tokenizer of BERT (Devlin et al. 2019)."""
    tokens = _lines(path)
    token_ids = check_token_ids({token: index for index, token in enumerate(tokens)}, str(path))
    names = NAMES | read_names(folder)
    for field in ("unk", "cls", "sep"):
        if names[field] not in token_ids:
            raise CheckpointError(f"{path}: has no {names[field]}")
    config = read_object(folder / CONFIG)
    with tokenizer_errors(str(path)):
        normalizer = normalizers.BertNormalizer(
            lowercase=_flag(config, "do_lower_case", True, folder),
            strip_accents=_flag(config, "strip_accents", None, folder),  # None: same as lowercase
            handle_chinese_chars=_flag(config, "tokenize_chinese_chars", True, folder),
        )
        backend = wordpiece_backend(token_ids, normalizer, names)
        return PretrainedTokenizer(_with_special(backend, names, folder), names)


def _bytes_bpe(folder: Path, vocabulary: Path, merges: Path) -> PretrainedTokenizer:
    """Load a byte-level BPE tokenizer of GPT-2 (Radford et al. 2019)."""
    token_ids = check_token_ids(_json(vocabulary), str(vocabulary))
    lines = [line for line in _lines(merges) if line and not line.startswith("#version")]
    pairs = []
    for line in lines:
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise CheckpointError(f"{merges}: {line[:100]!r} must be two tokens separated by a space")
        pairs.append((first, second))
    config, names = read_object(folder / CONFIG), read_names(folder)
    with tokenizer_errors(str(vocabulary)):
        backend = Backend(models.BPE(token_ids, pairs))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(_flag(config, "add_prefix_space", False, folder))
        backend.decoder = decoders.ByteLevel()
        _with_special(backend, {"end": "<|endoftext|>"} | names, folder)
    if _flag(config, "add_bos_token", False, folder):
        pretrained = PretrainedTokenizer(backend, names)
        if pretrained.special_tokens.begin is None:
            raise CheckpointError(f"{folder / CONFIG}: add_bos_token is set, but the vocabulary has no such token")
        begin = pretrained.id_to_token(pretrained.special_tokens.begin)
        backend.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"],
            pair=[begin, "$A", begin, "$B:1"],
            special_tokens=[(begin, pretrained.special_tokens.begin)],
        )
    return PretrainedTokenizer(backend, names)


def _marian(folder: Path) -> PairTokenizer:
    """Load the tokenizers of Marian: a SentencePiece model per language, with one or two vocabulary files."""
    separate = _flag(read_object(folder / CONFIG), "separate_vocabs", False, folder)
    source = folder / "vocab.json"
    target = folder / "target_vocab.json" if separate else source
    return PairTokenizer(_spm(folder, folder / "source.spm", source), _spm(folder, folder / "target.spm", target))


def _spm(folder: Path, path: Path, vocabulary: Path) -> PretrainedTokenizer:
    token_ids = check_token_ids(_json(vocabulary), str(vocabulary))
    names = {"pad": "<pad>", "unk": "<unk>", "end": "</s>"} | read_names(folder)
    for field in ("unk", "end"):
        if names[field] not in token_ids:
            raise CheckpointError(f"{vocabulary}: has no {names[field]}")
    end = names["end"]
    tokenizer = sentencepiece_tokenizer(read_bytes(path, MAX_SPM_BYTES), str(path))
    languages = [token for token in token_ids if token.startswith(">>") and token.endswith("<<")]
    with tokenizer_errors(str(path)):
        tokenizer.add_special_tokens([name for name in names.values() if name in token_ids])
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in languages])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["$A", end], pair=["$A", "$B:1", end], special_tokens=[(end, tokenizer.token_to_id(end))]
        )
        return PretrainedTokenizer(tokenizer, names, token_ids)


# Tokenizer files by model type, in search order.
READERS: dict[str, tuple[tuple[tuple[str, ...], Callable[..., PretrainedTokenizer]], ...]] = {
    "bert": ((("vocab.txt",), _wordpiece),),
    "llama": (
        (("tokenizer.model",), lambda folder, path: llama_tokenizer(read_bytes(path, MAX_SPM_BYTES), str(path))),
    ),
    "gpt2": ((("vocab.json", "merges.txt"), _bytes_bpe), (("encoder.json", "vocab.bpe"), _bytes_bpe)),
}


def _with_special(backend: Backend, names: Mapping[str, str], folder: Path) -> Backend:
    """Register the special tokens, and the tokens of added_tokens.json."""
    added = read_object(folder / ADDED)
    if added:
        token_ids = check_token_ids(added, str(folder / ADDED))
        new = sorted((token_id, token) for token, token_id in token_ids.items() if backend.token_to_id(token) is None)
        for token_id, token in new:
            if token_id != backend.get_vocab_size() or not 0 < len(token) <= MAX_TOKEN_CHARS:
                raise CheckpointError(f"{folder / ADDED}: {token[:100]!r} must have the next free id")
            backend.add_tokens([AddedToken(token, special=token in names.values(), normalized=False)])
    backend.add_special_tokens([name for name in names.values() if backend.token_to_id(name) is not None])
    return backend


def _flag(config: Mapping[str, Any], key: str, default: T, folder: Path) -> bool | T:
    value = config.get(key)
    if not isinstance(value, bool | None):
        raise CheckpointError(f"{folder / CONFIG}: {key} must be true or false, not {printable(repr(value))}")
    return default if value is None else value


def _json(path: Path) -> Any:
    return parse_large_json(read_text(path, MAX_FILE_BYTES), path)


def _lines(path: Path) -> list[str]:
    """Read the lines of a vocabulary or merges file."""
    text = read_text(path, MAX_FILE_BYTES).removesuffix("\n")
    if text.count("\n") >= MAX_TOKENS:
        raise CheckpointError(f"{path}: has more than {MAX_TOKENS:,} lines")
    return text.split("\n")

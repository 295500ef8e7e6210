"""Bounded reader of SentencePiece model files (Kudo and Richardson 2018), which are protocol buffers.

    ModelProto: 1 pieces (repeated), 2 trainer_spec, 3 normalizer_spec
    piece: 1 text, 2 score, 3 kind
    trainer_spec: 3 model_type, 24 treat_whitespace_as_suffix;   normalizer_spec: 2 charsmap, 3 to 5 whitespace flags

A message is a sequence of fields, each a tag (number and wire type) and a value; other fields are skipped.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from qkv.errors import CheckpointError
from qkv.tokenizers.library import SPACE, tokenizer_errors
from qkv.tokenizers.limits import MAX_TOKENS, TRIM, check_charsmap, check_unigram

MAX_PIECE_BYTES = 2**10
UNIGRAM = 1  # model_type
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types


class Kind(IntEnum):
    """Type of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # such as </s>: never matched in a text
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SentencePieces:
    """Content of a model file: pieces with log-probabilities, and normalization options."""

    pieces: tuple[tuple[str, float, Kind], ...]
    charsmap: bytes = b""  # precompiled map of character replacements
    add_dummy_prefix: bool = True  # prepend a space to each text
    remove_extra_whitespaces: bool = True  # strip, and collapse runs of spaces
    escape_whitespaces: bool = True  # replace spaces by "▁"

    @classmethod
    def parse(cls, data: bytes, where: str) -> "SentencePieces":
        """Parse the bytes of a model file; error messages start with `where`."""
        try:
            return cls._parse(data)
        except (ValueError, struct.error) as error:  # a UnicodeDecodeError is a ValueError
            raise CheckpointError(f"{where}: not a valid SentencePiece model: {error}") from None

    @classmethod
    def _parse(cls, data: bytes) -> "SentencePieces":
        pieces = []
        normalizer: dict[int, int | bytes] = {}
        trainer: dict[int, int | bytes] = {}
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(_bytes(value)))
                if len(pieces) > MAX_TOKENS:
                    raise ValueError(f"more than {MAX_TOKENS:,} pieces")
            elif number == 2:
                trainer = dict(_fields(_bytes(value)))
            elif number == 3:
                normalizer = dict(_fields(_bytes(value)))
        if trainer.get(3, UNIGRAM) != UNIGRAM or trainer.get(24, 0):
            raise ValueError("only unigram models with whitespace as prefix are supported")
        flags = [bool(normalizer.get(number, 1)) for number in (3, 4, 5)]
        return cls(tuple(pieces), _bytes(normalizer.get(2, b"")), *flags)

    def tokenizer(self, where: str) -> Tokenizer:
        """Convert the model to the `tokenizers` library, which assigns its own token ids."""
        kinds = {kind for _, _, kind in self.pieces}
        if kinds & {Kind.USER_DEFINED, Kind.BYTE} or not self.escape_whitespaces:
            raise CheckpointError(
                f"{where}: user-defined pieces, byte pieces and unescaped whitespace are not supported"
            )
        unknown = [text for text, _, kind in self.pieces if kind is Kind.UNKNOWN]
        vocabulary = [(text, score) for text, score, kind in self.pieces if kind is Kind.NORMAL]
        if len(unknown) != 1 or not vocabulary:
            raise CheckpointError(f"{where}: must have one unknown piece and at least one normal piece")
        if len({text for text, _ in vocabulary} | {unknown[0]}) < len(vocabulary) + 1:
            raise CheckpointError(f"{where}: has duplicate pieces")
        with tokenizer_errors(where):
            check_unigram(text for text, _ in vocabulary)
            tokenizer = Tokenizer(models.Unigram([(unknown[0], 0.0), *vocabulary], 0))
            steps: list[normalizers.Normalizer] = []
            if self.charsmap:
                check_charsmap(self.charsmap)
                steps.append(normalizers.Precompiled(self.charsmap))
            if self.remove_extra_whitespaces:
                steps += [normalizers.Replace(Regex(TRIM), ""), normalizers.Replace(Regex(" {2,}"), " ")]
            if self.add_dummy_prefix:
                steps.append(normalizers.Prepend(SPACE))
            # Pieces may contain spaces, so the text is not split at them.
            tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
            tokenizer.decoder = decoders.Metaspace(SPACE, "always" if self.add_dummy_prefix else "never")
            tokenizer.encode("a")
        return tokenizer


def _piece(data: bytes) -> tuple[str, float, Kind]:
    fields = dict(_fields(data))
    text, score = _bytes(fields.get(1, b"")), fields.get(2, b"\0" * 4)
    if not 0 < len(text) <= MAX_PIECE_BYTES:
        raise ValueError(f"a piece of {len(text)} bytes")
    if not isinstance(score, bytes) or len(score) != 4:
        raise ValueError("a score must have four bytes")
    [number] = struct.unpack("<f", score)
    if not math.isfinite(number):
        raise ValueError("a score is not finite")
    kind = fields.get(3, Kind.NORMAL)
    if not isinstance(kind, int):
        raise ValueError("the type of a piece must be a number")
    return text.decode("utf-8"), number, Kind(kind)


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("expected bytes, not a number")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message; fixed-size numbers are returned as bytes."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        wire = tag & 7
        if wire == VARINT:
            value, offset = _varint(data, offset)
            yield tag >> 3, value
            continue
        if wire == BYTES:
            size, offset = _varint(data, offset)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {wire} at byte {offset}")
        if size > len(data) - offset:
            raise ValueError(f"truncated at byte {offset}")
        yield tag >> 3, data[offset : offset + size]
        offset += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode a little-endian base-128 varint; return it and the offset after it."""
    number = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            raise ValueError(f"truncated at byte {offset}")
        byte = data[offset]
        offset += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, offset
    raise ValueError(f"a varint of more than ten bytes at byte {offset}")

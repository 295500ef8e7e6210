"""The file of a SentencePiece model (Kudo and Richardson 2018): a protocol buffer, read here with bounds.

    ModelProto: 1 pieces (repeated), 2 trainer_spec, 3 normalizer_spec
    piece: 1 text, 2 score, 3 kind
    trainer_spec: 3 model_type, 24 whether spaces end pieces;   normalizer_spec: 2 charsmap, 3 to 5 what spaces become

A message is fields one after another, each a tag (number and wire type) and a value; what is not asked for is skipped.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from qkv.data.tokenizer import SPACE, of_the_library
from qkv.data.tokenizer_limits import MAX_TOKENS, TRIM, check_charsmap, check_unigram
from qkv.errors import CheckpointError

LONGEST_PIECE = 2**10
UNIGRAM = 1  # of the kinds of model
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types


class Kind(IntEnum):
    """What a piece is."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # such as </s>: never read from a text
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SentencePieces:
    """What a model file says: its pieces with their log-probabilities, and how a text is made ready for them."""

    pieces: tuple[tuple[str, float, Kind], ...]
    charsmap: bytes = b""  # which characters become which
    prefix: bool = True  # whether a space is put before a text
    trimmed: bool = True  # whether spaces around a text, and all but one within it, are taken away
    escaped: bool = True  # whether spaces become "▁"

    @classmethod
    def parse(cls, data: bytes, where: str) -> "SentencePieces":
        """Read a model file's bytes; `where` opens the messages of errors."""
        try:
            return cls._parsed(data)
        except (ValueError, struct.error) as error:  # a UnicodeDecodeError is a ValueError
            raise CheckpointError(f"{where}: not a SentencePiece model that can be read: {error}") from None

    @classmethod
    def _parsed(cls, data: bytes) -> "SentencePieces":
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
            raise ValueError("only unigram models whose pieces begin with their spaces are known")
        flags = [bool(normalizer.get(number, 1)) for number in (3, 4, 5)]
        return cls(tuple(pieces), _bytes(normalizer.get(2, b"")), *flags)

    def tokenizer(self, where: str) -> Tokenizer:
        """The same model for the `tokenizers` library, which numbers the pieces in its own way."""
        kinds = {kind for _, _, kind in self.pieces}
        if kinds & {Kind.USER_DEFINED, Kind.BYTE} or not self.escaped:
            raise CheckpointError(
                f"{where}: has pieces of the user's own, or for bytes, or raw spaces: none are known here"
            )
        unknown = [text for text, _, kind in self.pieces if kind is Kind.UNKNOWN]
        vocabulary = [(text, score) for text, score, kind in self.pieces if kind is Kind.NORMAL]
        if len(unknown) != 1 or not vocabulary:
            raise CheckpointError(f"{where}: must have one piece for what is unknown, and others besides")
        if len({text for text, _ in vocabulary} | {unknown[0]}) < len(vocabulary) + 1:
            raise CheckpointError(f"{where}: has a piece twice")
        with of_the_library(where):
            check_unigram(text for text, _ in vocabulary)
            tokenizer = Tokenizer(models.Unigram([(unknown[0], 0.0), *vocabulary], 0))
            steps: list[normalizers.Normalizer] = []
            if self.charsmap:
                check_charsmap(self.charsmap)
                steps.append(normalizers.Precompiled(self.charsmap))
            if self.trimmed:
                steps += [normalizers.Replace(Regex(TRIM), ""), normalizers.Replace(Regex(" {2,}"), " ")]
            if self.prefix:
                steps.append(normalizers.Prepend(SPACE))
            # A piece may have spaces within it, so the text is not cut at them.
            tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
            tokenizer.decoder = decoders.Metaspace(SPACE, "always" if self.prefix else "never")
            tokenizer.encode("a")
        return tokenizer


def _piece(data: bytes) -> tuple[str, float, Kind]:
    fields = dict(_fields(data))
    text, score = _bytes(fields.get(1, b"")), fields.get(2, b"\0" * 4)
    if not 0 < len(text) <= LONGEST_PIECE:
        raise ValueError(f"a piece of {len(text)} bytes")
    if not isinstance(score, bytes) or len(score) != 4:
        raise ValueError("a score that is not of four bytes")
    [number] = struct.unpack("<f", score)
    if not math.isfinite(number):
        raise ValueError("a score that is not finite")
    kind = fields.get(3, Kind.NORMAL)
    if not isinstance(kind, int):
        raise ValueError("text where the kind of a piece should be")
    return text.decode("utf-8"), number, Kind(kind)


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text should be")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: the number of each and its value, which for a number of fixed size is its bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        wire = tag & 7
        if wire == VARINT:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if wire == BYTES:
            size, place = _varint(data, place)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {wire} at byte {place}")
        if size > len(data) - place:
            raise ValueError(f"cut short at byte {place}")
        yield tag >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError(f"cut short at byte {place}")
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError(f"a number of more than ten bytes at byte {place}")

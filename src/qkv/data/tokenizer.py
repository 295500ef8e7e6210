"""A released tokenizer: text to the numbers that a model was trained on, with the place of each in the text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from qkv.data.tokenizer_limits import (
    MAX_GROWTH,
    MAX_TOKEN_CHARS,
    MAX_TOKENS,
    OLD_TRIM,
    TRIM,
    check_tokenizer_json,
    encoding_growth,
    max_text_bytes,
    steps,
)
from qkv.errors import CheckpointError, InputError, QkvError
from qkv.runtime.document import parse_json
from qkv.runtime.native import silence_native_stderr

LARGEST_NUMBER = 2**24  # of a token
MAX_JSON_VALUES = 2**22  # each takes about 70 bytes of memory; Gemma's tokenizer.json has 1.8 million
SPACE = "▁"  # as SentencePiece writes it
NUMBERS = "numbers"  # the key of our own in a tokenizer.json, which then is for no other library
USUAL = {  # the names that released vocabularies have for tokens with a role
    "pad": ("<pad>", "[PAD]"),
    "unknown": ("<unk>", "[UNK]", "<|endoftext|>"),
    "begin": ("<s>", "[CLS]", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}


@dataclass(frozen=True)
class Encoded:
    """A text, or two, as tokens."""

    ids: list[int]
    segments: list[int]  # for each token 0, or 1 where it belongs to the second text
    offsets: list[tuple[int, int]]  # where it begins and ends in its text; (0, 0) where it stands for nothing there
    texts: list[int | None]  # which of the two texts that is; None: it was put there, such as [CLS]
    pieces: tuple[str, ...]  # what a person should see: the text itself, or the name of what was put there

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Roles:
    """The numbers of the tokens with a role; None where a vocabulary has no such token."""

    pad: int | None = None
    unknown: int | None = None
    begin: int | None = None  # also called bos, or cls
    end: int | None = None  # also called eos, or sep
    mask: int | None = None


class PretrainedTokenizer:
    """A tokenizer of the library, under the numbers that a model knows its tokens by.

    `names` gives the token of each role. `numbers` is for a vocabulary that is numbered apart from its pieces, as
    Marian's is: pieces without a number are read as unknown, for which there must be a token, and some numbers stand
    for pieces of the other language.
    """

    def __init__(
        self, tokenizer: Tokenizer, names: Mapping[str, str] | None = None, numbers: Mapping[str, int] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.numbers = None if numbers is None else dict(numbers)
        known = self._numbers
        usual = {role: next((name for name in some if name in known), None) for role, some in USUAL.items()}
        self.names = {role: name for role, name in (usual | dict(names or {})).items() if name in known}
        self.roles = Roles(**{role: known[name] for role, name in self.names.items()})
        self.max_bytes = max_text_bytes(encoding_growth(_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)))

    @classmethod
    def from_json(cls, text: str, where: str, names: Mapping[str, str] | None = None) -> "PretrainedTokenizer":
        """Read a tokenizer.json, here or from another library; `where` opens the messages of errors."""
        tokenizer, numbers = load_tokenizer(text, where)
        made = cls(tokenizer, names, numbers)
        if numbers is not None and (made.roles.unknown is None or tokenizer.decoder is None):
            raise CheckpointError(f"{where}: needs a token for what is unknown, and a decoder")
        with of_the_library(where):
            made._encoded("a", tokenizer.encode("a"))  # what cannot be done at all shows here
        return made

    def to_json(self) -> str:
        """The tokenizer as a tokenizer.json; only one without numbers of its own can be read by other libraries."""
        text = self.tokenizer.to_str(pretty=True)
        return text if self.numbers is None else json.dumps(json.loads(text) | {NUMBERS: self.numbers}, indent=2)

    @property
    def source(self) -> "PretrainedTokenizer":
        """The tokenizer of the source side: this one serves both, see TwoTokenizers."""
        return self

    @property
    def target(self) -> "PretrainedTokenizer":
        """The tokenizer of the target side."""
        return self

    def __len__(self) -> int:
        """How many numbers a model needs to have room for."""
        return 1 + max(self._numbers.values(), default=-1)

    def encode(self, text: str, pair: str | None = None, *, specials: bool = True) -> Encoded:
        """The tokens of a text, or of two; with `specials` also those that its model expects around them."""
        return self.encode_batch([text] if pair is None else [(text, pair)], specials=specials)[0]

    def encode_batch(self, texts: Sequence[str | tuple[str, str]], *, specials: bool = True) -> list[Encoded]:
        """The tokens of many texts, or pairs of them."""
        self._check_lengths(texts)
        with of_the_library("this tokenizer"), _text_alone():
            found = self.tokenizer.encode_batch(list(texts), add_special_tokens=specials)
            return [self._encoded(text, one) for text, one in zip(texts, found, strict=True)]

    def encode_ids(self, texts: Sequence[str], *, specials: bool = False) -> list[list[int]]:
        """The token numbers of many texts alone, in half the time: where each token stands is not worked out."""
        self._check_lengths(texts)
        with of_the_library("this tokenizer"), _text_alone():
            # the library's fast way does not say how a token is written, by which numbers of our own are found
            read = self.tokenizer.encode_batch_fast if self.numbers is None else self.tokenizer.encode_batch
            return [self._ids(one) for one in read(list(texts), add_special_tokens=specials)]

    def normalize(self, text: str) -> str:
        """A text as it is wanted back: as it is."""
        return text

    def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
        """The text of tokens; those with a role are left out, unless `specials` asks for them."""
        with of_the_library("this tokenizer"):
            if self.numbers is None:
                return self.tokenizer.decode(list(ids), skip_special_tokens=not specials)
            hidden = set() if specials else set(self.names.values())
            names = [self.name(number) for number in ids]
            return self.tokenizer.decoder.decode([name for name in names if name not in hidden]).strip()

    def unknown(self, tokens: "Encoded") -> tuple[str, ...]:
        """The pieces of a text that stand for nothing that the model knows, each once, in order."""
        if self.roles.unknown is None:
            return ()
        found = (
            piece
            for number, piece, text in zip(tokens.ids, tokens.pieces, tokens.texts, strict=True)
            if number == self.roles.unknown and text is not None
        )
        return tuple(dict.fromkeys(piece for piece in found if piece))

    def name(self, number: int) -> str:
        """A token as its vocabulary writes it; a number that none has is an error."""
        if number not in self._tokens:
            raise InputError(f"no token has the number {number}: the vocabulary has {len(self):,}")
        return self._tokens[number]

    def piece(self, number: int) -> str:
        """A token as a person should see it, where there is no text to show."""
        name = self.name(number)
        if number in self._special:
            return name
        with of_the_library("this tokenizer"):
            shown = self.tokenizer.decoder.decode([name]) if self.tokenizer.decoder is not None else name
        return f" {shown}" if name.startswith(SPACE) else shown.removeprefix("##")

    def _check_lengths(self, texts: Sequence[str | tuple[str, str]]) -> None:
        """Raise for a text that could take too much memory with this tokenizer."""
        if self.max_bytes is None:
            return
        for text in texts:
            for side in (text,) if isinstance(text, str) else text:
                if 4 * len(side) > self.max_bytes and len(side.encode(errors="replace")) > self.max_bytes:
                    raise InputError(f"a text is longer than {self.max_bytes:,} bytes, the most for this tokenizer")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return self.tokenizer.get_vocab() if self.numbers is None else self.numbers

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {number: token for token, number in self._numbers.items()}

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(number for number in asdict(self.roles).values() if number is not None)

    def _encoded(self, text: str | tuple[str, str], found: Encoding) -> Encoded:
        sides = (text,) if isinstance(text, str) else text
        offsets = [
            (start, start if token == SPACE and side is not None and not sides[side][start:stop].isspace() else stop)
            for token, side, (start, stop) in zip(found.tokens, found.sequence_ids, found.offsets, strict=True)
        ]  # a space that was put before a text stands for nothing in it
        pieces = (
            token if side is None else sides[side][start:stop]
            for token, side, (start, stop) in zip(found.tokens, found.sequence_ids, offsets, strict=True)
        )
        return Encoded(self._ids(found), found.type_ids, offsets, found.sequence_ids, tuple(pieces))

    def _ids(self, found: Encoding) -> list[int]:
        if self.numbers is None:
            return found.ids
        # a piece that is unknown on one side may have got a number from the other
        return [self.numbers.get(token, self.numbers[self.names["unknown"]]) for token in found.tokens]


@dataclass(frozen=True)
class TwoTokenizers:
    """A tokenizer for each side of a translation."""

    source: PretrainedTokenizer
    target: PretrainedTokenizer


@contextmanager
def of_the_library(where: str) -> Iterator[None]:
    """One clear error for whatever the library does not like; at a crafted file it panics, which is no Exception."""
    try:
        with silence_native_stderr():  # a panic prints its message itself
            yield
    except (KeyboardInterrupt, SystemExit, QkvError):
        raise
    except BaseException as error:
        raise CheckpointError(f"{where}: not a tokenizer: {' '.join(str(error).split())[:300]}") from None


@contextmanager
def _text_alone() -> Iterator[None]:
    try:
        yield
    except TypeError:
        raise InputError("half a surrogate pair is no text: it cannot be written as UTF-8") from None


def load_tokenizer(text: str, where: str, max_growth: float = MAX_GROWTH) -> tuple[Tokenizer, dict[str, int] | None]:
    """Check and load a tokenizer.json; also gives the numbers of its tokens where it has a table of its own."""
    data = parse_large_json(text, Path(where))
    numbers = data.pop(NUMBERS, None) if isinstance(data, dict) else None
    with of_the_library(where):
        if numbers is not None:  # written by qkv
            for step in steps(data.get("normalizer")):
                if step.get("pattern") == {"Regex": OLD_TRIM}:
                    step["pattern"] = {"Regex": TRIM}
            text = json.dumps(data)
        check_tokenizer_json(data, max_growth)
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    checked_numbers(tokenizer.get_vocab(), where)
    return tokenizer, None if numbers is None else checked_numbers(numbers, where)


def parse_large_json(text: str, path: Path) -> Any:
    """Parse the JSON of a vocabulary after its number of values, each of which takes memory, was checked."""
    if sum(map(text.count, ",[{")) > MAX_JSON_VALUES:
        raise CheckpointError(f"{path}: has more than {MAX_JSON_VALUES:,} values")
    return parse_json(text, path)


def _state(step: Any) -> Any:
    """The JSON of a normalizer or pre-tokenizer."""
    return None if step is None else json.loads(step.__getstate__())


def checked_numbers(numbers: Any, where: str) -> dict[str, int]:
    """A vocabulary as a file gave it, if each token has a number of its own that a model could have room for."""
    if not isinstance(numbers, dict) or not numbers:
        raise CheckpointError(f"{where}: must give each token its number")
    if len(numbers) > MAX_TOKENS:
        raise CheckpointError(f"{where}: has {len(numbers):,} tokens, at most {MAX_TOKENS:,} are accepted")
    for token, number in numbers.items():
        if len(token) > MAX_TOKEN_CHARS:
            raise CheckpointError(f"{where}: {token[:100]!r}... has more than {MAX_TOKEN_CHARS:,} characters")
        if type(number) is not int or not 0 <= number < LARGEST_NUMBER:
            raise CheckpointError(f"{where}: the number of {token!r} is {number!r}, not one below {LARGEST_NUMBER:,}")
    if len(set(numbers.values())) < len(numbers):
        raise CheckpointError(f"{where}: two tokens have the same number")
    return numbers

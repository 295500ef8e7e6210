"""Subwords of dialogues: the turns of two speakers, and the history of a response.

A text has one turn per line. Each is encoded as <speaker> turn </s>, and the speakers alternate:

    "Hello!\\nHi, how are you?\\nFine."  ->  <speaker1> Hello ! </s> <speaker2> Hi , ... </s> <speaker1> Fine . </s>

The last turn is that of the first speaker, to whom the second responds: with `add_special_tokens`, <speaker2> follows.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from qkv.config import VocabSize
from qkv.errors import CheckpointError
from qkv.registry import register
from qkv.tokenizers.tokenizer import Encoding, Span, Tokenizer
from qkv.tokenizers.trained import END, SPECIAL, BPETokenizer

SPEAKERS = ("<speaker1>", "<speaker2>")
FRAME = 2  # tokens of a turn in addition to its text: the speaker and </s>
HISTORY_TURNS, HISTORY_TOKENS = 4, 128  # default limits of a history


@register("tokenizer", "dialogue")
class DialogueTokenizer(BPETokenizer):
    """Tokens are subwords (byte-pair encoding), and two that start the turns of the two speakers of a dialogue."""

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        lowercase: bool = False,
        *,
        vocab_size: VocabSize = 8000,  # maximum number of tokens, without those of the speakers
    ) -> "DialogueTokenizer":
        backend = BPETokenizer.train(texts, lowercase, vocab_size=vocab_size).backend
        backend.add_special_tokens([*SPEAKERS])
        return cls(backend)

    @classmethod
    def from_json(cls, text: str, where: str) -> "DialogueTokenizer":
        """Load a tokenizer.json; error messages start with `where`."""
        tokenizer = super().from_json(text, where)
        if not has_speakers(tokenizer):
            raise CheckpointError(f"{where}: a tokenizer of dialogues must have the tokens {' and '.join(SPEAKERS)}")
        return tokenizer

    @cached_property
    def target(self) -> Tokenizer:
        """The tokenizer of a response, which has no speaker."""
        return BPETokenizer(self.backend)

    def encode_with_offsets(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[Encoding]:
        turns = _distinct_turns(texts)
        encodings = dict(zip(turns, self.target.encode_with_offsets(turns), strict=True))
        return [self._joined(text, encodings, add_special_tokens) for text in texts]

    def _joined(self, text: str, encodings: dict[str, Encoding], add_special_tokens: bool) -> Encoding:
        ids: list[int] = []
        pieces: list[str] = []
        offsets: list[Span] = []
        start = 0
        turns = text.split("\n")
        for speaker, turn in zip(_speakers(len(turns)), turns, strict=True):
            encoding, end = encodings[turn], start + len(turn)
            ids += (self.vocab[speaker], *encoding.ids, END)
            pieces += (speaker, *encoding.pieces, SPECIAL[END])
            offsets += (
                (start, start),
                *((start + first, start + last) for first, last in encoding.offsets),
                (end, end),
            )
            start = end + 1
        if add_special_tokens:
            ids.append(self.vocab[SPEAKERS[1]])
            pieces.append(SPEAKERS[1])
            offsets.append((len(text), len(text)))
        return Encoding(ids, offsets, tuple(pieces))

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids without offsets; a turn that several texts share is encoded once."""
        turns = _distinct_turns(texts)
        ids = dict(zip(turns, self.target.encode(turns), strict=True))
        return [
            self.join_turns([ids[turn] for turn in text.split("\n")], add_special_tokens=add_special_tokens)
            for text in texts
        ]

    def join_turns(self, turns: Sequence[Sequence[int]], *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text from those of its turns."""
        speakers = _speakers(len(turns))
        ids = [id_ for name, turn in zip(speakers, turns, strict=True) for id_ in (self.vocab[name], *turn, END)]
        return [*ids, self.vocab[SPEAKERS[1]]] if add_special_tokens else ids


def has_speakers(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary has the tokens of the speakers of a dialogue."""
    return tokenizer.vocab.keys() >= {*SPEAKERS}


def with_speakers(text: str) -> str:
    """Return a history as it is encoded, with its special tokens as words."""
    turns = text.split("\n")
    named = (f"{speaker} {turn} {SPECIAL[END]}" for speaker, turn in zip(_speakers(len(turns)), turns, strict=True))
    return " ".join((*named, SPEAKERS[1]))


def history_start(lengths: Sequence[int], max_turns: int, max_tokens: int) -> int:
    """Return the index of the first turn of the longest history within limits; it has at least the last turn.

    `lengths` are the tokens of the turns before a response, without those of `FRAME`.
    """
    tokens, start = 1, len(lengths)  # the speaker of the response
    while start > max(0, len(lengths) - max_turns):
        tokens += lengths[start - 1] + FRAME
        if tokens > max_tokens and start < len(lengths):
            break
        start -= 1
    return start


def truncate_turn(tokenizer: Tokenizer, turn: str, max_tokens: int) -> str:
    """Return the end of a turn, the longest that has at most `max_tokens` tokens in a history of its own."""
    limit = max_tokens - FRAME - 1
    (encoding,) = tokenizer.target.encode_with_offsets([turn])
    kept = min(limit, len(encoding))
    while kept > 0:
        text = turn[encoding.offsets[len(encoding) - kept][0] :].strip()
        if text and len(tokenizer.target.encode(text)) <= limit:  # a part of a word can have more tokens than in it
            return text
        kept -= 1
    return ""


def _distinct_turns(texts: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(turn for text in texts for turn in text.split("\n"))]


def _speakers(count: int) -> list[str]:
    """Return the speaker of each turn; the last is the first speaker's."""
    return [SPEAKERS[following % 2] for following in reversed(range(count))]

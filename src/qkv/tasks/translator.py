"""Translation: one text in, another text out, and what was read for each token written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.attention import watch
from qkv.config import require
from qkv.data.batching import EncodedPair, by_length, collate
from qkv.data.vocabulary import BEGIN, END, PAD, SPECIAL, UNKNOWN, Tokens, Vocabulary
from qkv.errors import InputError
from qkv.generation import Hypothesis, beam_search, greedy_search
from qkv.interop import load
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.runtime.device import pick_device
from qkv.tasks.answer import Answer, AttentionMap

NEVER_SAID = (PAD, UNKNOWN, BEGIN)
BATCH_TOKENS = 8192  # source tokens, padding and beams counted


@dataclass(frozen=True)
class Search:
    """How to look for translations, and how many to give."""

    beam: int = 1  # how many hypotheses to follow; 1 is greedy
    n_best: int = 1
    length_penalty: float = 1.0  # a score is log p / length ** this

    def __post_init__(self) -> None:
        require(
            1 <= self.n_best <= self.beam,
            f"n-best must lie between 1 and the beam, but n-best is {self.n_best} and the beam {self.beam}",
        )


GREEDY = Search()


class Translator:
    """A sequence-to-sequence model with its vocabulary: `Translator("runs/demo")("5 March 2026").text`."""

    def __init__(
        self, model: str | Path | EncoderDecoder[Any, Any], vocabulary: Vocabulary | None = None, device: str = "auto"
    ):
        self.model = (model if isinstance(model, EncoderDecoder) else load(model, device=pick_device(device))).eval()
        found = vocabulary or self.model.tokenizer
        if found is None:
            name = type(model).__name__ if isinstance(model, EncoderDecoder) else model
            raise InputError(f"{name}: a translator needs a vocabulary, and there is none beside the weights")
        self.vocabulary: Vocabulary = found

    def __call__(self, text: str, *, beam: int = 1, length_penalty: float = 1.0, attention: bool = True) -> Answer:
        """The best translation of one text, with its attention maps."""
        search = Search(beam, length_penalty=length_penalty)
        return self.translate([text], search, attention=attention)[0][0]

    def translate(
        self, texts: Sequence[str], search: Search = GREEDY, *, attention: bool = False
    ) -> list[list[Answer]]:
        """The translations of each text, best first; with their attention maps if `attention`."""
        found = dict(self.stream(texts, search, attention=attention))
        return [found[index] for index in range(len(texts))]

    def stream(
        self, texts: Sequence[str], search: Search = GREEDY, *, attention: bool = False
    ) -> Iterator[tuple[int, list[Answer]]]:
        """Like `translate`, but gives (index, answers) batch by batch, texts of like length together."""
        sources = [self._tokens(number, text) for number, text in enumerate(texts, start=1)]
        lengths = [len(source.ids) for source in sources]
        for rows in by_length(lengths, max(1, BATCH_TOKENS // search.beam)):
            batch = [sources[row] for row in rows]
            found = [best[: search.n_best] for best in self._search(batch, search)]
            pairs = [(source, best) for source, kept in zip(batch, found, strict=True) for best in kept]
            seen = iter(self.attention(pairs) if attention else [()] * len(pairs))
            for row, source, kept in zip(rows, batch, found, strict=True):
                unknown = self.vocabulary.unknown(source)
                yield (
                    row,
                    [
                        Answer(texts[row], self.vocabulary.decode(best.tokens), best.score, next(seen), unknown)
                        for best in kept
                    ],
                )

    @torch.inference_mode()
    def attention(self, pairs: Sequence[tuple[Tokens, Hypothesis]]) -> list[tuple[AttentionMap, ...]]:
        """What each hypothesis attended to: one more pass over what search found, with every layer watched.

        A decoder's steps and its teacher-forced pass compute the same, so this holds for any search.
        """
        batch = collate([EncodedPair(source.ids, best.tokens) for source, best in pairs]).to(self.model.device)
        with watch(self.model) as seen:
            self.model(batch.source, batch.target_in, batch.source_lengths)
        layers = {name: seen[name].weights.float().cpu() for name in sorted(seen, key=_reading_order)}
        return [
            tuple(self._map(name, weights[row], source, best) for name, weights in layers.items())
            for row, (source, best) in enumerate(pairs)
        ]

    def _map(self, layer: str, weights: torch.Tensor, source: Tokens, hypothesis: Hypothesis) -> AttentionMap:
        """Name the rows and columns of one layer's weights; padding and the query that wrote </s> are left out."""
        written = tuple(self.vocabulary.piece(token) for token in hypothesis.tokens)
        if layer.startswith("encoder"):
            rows = columns = source.pieces
        elif layer.endswith(".self"):
            rows, columns = written, (SPECIAL[BEGIN], *written[:-1])
        else:
            rows, columns = written, source.pieces
        return AttentionMap(layer, rows, columns, weights[:, : len(rows), : len(columns)].numpy())

    def _search(self, sources: Sequence[Tokens], search: Search) -> list[list[Hypothesis]]:
        batch = collate([EncodedPair(source.ids, ()) for source in sources]).to(self.model.device)
        with torch.inference_mode():
            memory = self.model.encode(batch.source, batch.source_lengths)
        # By each text's own length: what else is in the batch must make no difference.
        longest = (2 * batch.source_lengths + 50).clamp(max=self.model.config.max_length)
        rules: dict[str, Any] = {"batch": len(sources), "begin": BEGIN, "end": END, "max_length": longest,
                                 "length_penalty": search.length_penalty, "never": NEVER_SAID}  # fmt: skip
        if search.beam == 1:
            return [[hypothesis] for hypothesis in greedy_search(self.model, memory, **rules)]
        return beam_search(self.model, memory, beam=search.beam, **rules)

    def fits(self, text: str) -> bool:
        """Whether a text is short enough for the model."""
        return len(self.vocabulary.encode(text).ids) <= self.model.config.max_length

    def check(self, texts: Sequence[str]) -> None:
        """Raise for the first text that could not be translated, before any work is done; blank ones pass."""
        for number, text in enumerate(texts, start=1):
            if text.strip():
                self._tokens(number, text)

    def _tokens(self, number: int, text: str) -> Tokens:
        """The tokens of an input, or an error that says which input and why."""
        if not text.strip():
            raise InputError(f"input {number} is empty")
        tokens = self.vocabulary.encode(text)
        limit = self.model.config.max_length
        if len(tokens.ids) > limit:
            raise InputError(f"input {number} has {len(tokens.ids)} tokens; this model takes at most {limit}")
        return tokens


def _reading_order(layer: str) -> tuple[int, int]:
    """First what reads the source, its last layer foremost; then the decoder's own attention, then the encoder's."""
    number = next((int(part) for part in layer.split(".") if part.isdecimal()), 0)
    if layer.startswith("encoder"):
        return 2, number
    return (1, number) if layer.endswith(".self") else (0, -number)

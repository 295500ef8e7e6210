"""Translation: one text in, another text out, and what was read for each token written."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.attention import watch
from qkv.config import require, shown
from qkv.data.batching import Batch, EncodedPair, by_length, collate
from qkv.data.tagged import Tagged, text_of
from qkv.data.tokenizer import Encoded, PretrainedTokenizer, TwoTokenizers
from qkv.data.vocabulary import AnyVocabulary, Tokens
from qkv.errors import InputError
from qkv.generation import MOST_HYPOTHESES, Coverage, Hypothesis, Rules, Sampling, beam_search, greedy_search, sample
from qkv.interop import load_as
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.runtime.device import pick_device
from qkv.tasks.answer import Answer, AttentionMap
from qkv.tasks.marks import Marks, plain_ids
from qkv.tasks.parsed import ParsedPair, ParsedTokens, parsed_tokens, told, with_trees
from qkv.tasks.trees import parsed, reads_trees

AnyTokenizer = AnyVocabulary | PretrainedTokenizer | TwoTokenizers
AnyTokens = Tokens | Encoded
BATCH_TOKENS = 8192  # source tokens, padding and beams counted


@dataclass(frozen=True)
class Search:
    """How to look for translations, and how many to give."""

    beam: int = 1  # how many hypotheses to follow; 1 is greedy
    n_best: int = 1
    length_penalty: float = 1.0  # a score is log p / length ** this
    coverage_penalty: float = 0.0  # how much source tokens that were not read count against a translation
    min_length: int = 0  # in tokens
    max_length: int | None = None  # None: twice the source's and 50 more, as far as the model goes
    prefix: str = ""  # how every translation has to begin
    sampling: Sampling | None = None  # draw instead of looking for the best: n_best translations, each on its own
    exact: bool = False  # let a beam go on while one of its hypotheses might yet become better than those that ended

    def __post_init__(self) -> None:
        require(
            1 <= self.beam <= MOST_HYPOTHESES, f"the beam must lie between 1 and {MOST_HYPOTHESES:,}, not {self.beam}"
        )
        if self.sampling is None:
            require(
                1 <= self.n_best <= self.beam,
                f"n-best must lie between 1 and the beam, but n-best is {self.n_best} and the beam {self.beam}",
            )
        else:
            require(self.beam == 1, f"sampling follows one hypothesis at a time: a beam of {self.beam} is not for it")
            require(
                1 <= self.n_best <= MOST_HYPOTHESES,
                f"n-best must lie between 1 and {MOST_HYPOTHESES:,}, not {self.n_best}",
            )
        require(0 <= self.length_penalty < math.inf, f"length penalty must be 0 or more, not {self.length_penalty}")
        require(
            0 <= self.coverage_penalty < math.inf, f"coverage penalty must be 0 or more, not {self.coverage_penalty}"
        )
        require(
            self.coverage_penalty == 0 or self.beam > 1,
            "a coverage penalty chooses between hypotheses: it needs a beam of 2 or more",
        )
        require(not self.exact or self.beam > 1, "an exact search compares hypotheses: it needs a beam of 2 or more")
        require(self.min_length >= 0, f"min-length must be 0 or more, not {self.min_length}")
        require(
            self.max_length is None or self.max_length >= max(1, self.min_length),
            f"max-length must be 1 or more and no less than min-length {self.min_length}, not {self.max_length}",
        )

    @property
    def hypotheses(self) -> int:
        """How many hypotheses each text has at a time."""
        return self.beam if self.sampling is None else self.n_best


GREEDY = Search()


class Translator:
    """A sequence-to-sequence model with its vocabulary: `Translator("runs/demo")("5 March 2026").text`.

    A model that reads dependency trees takes sentences with heads (`qkv.data.tagged.Tagged`), whose tags are not looked
    at; of others, a sentence is its words with a blank between them.
    """

    def __init__(
        self,
        model: str | Path | EncoderDecoder[Any, Any],
        vocabulary: AnyTokenizer | None = None,
        device: str = "auto",
    ):
        given = model if isinstance(model, EncoderDecoder) else load_as(EncoderDecoder, model, pick_device(device))
        self.model: EncoderDecoder[Any, Any] = given.eval()
        self.name = type(model).__name__ if isinstance(model, EncoderDecoder) else str(model)
        found = vocabulary or self.model.tokenizer
        if found is None:
            raise InputError(f"{self.name}: a translator needs a vocabulary, and there is none beside the weights")
        self.vocabulary: Any = found  # AnyTokenizer: its two sides are of one kind, which types cannot say
        self.marks = Marks.of(self.vocabulary.target, self.model.config)

    def __call__(self, text: str | Tagged, *, attention: bool = True, **search: Any) -> Answer:
        """The best translation of one text, with its attention maps; `search` as in `Search`: `beam=5`."""
        return self.translate([text], Search(**search), attention=attention)[0][0]

    def translate(
        self,
        texts: Sequence[str | Tagged],
        search: Search = GREEDY,
        *,
        attention: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Answer]]:
        """The translations of each text, best first; with their attention maps if `attention`.

        Samples are drawn by the seed and the number of the text: its place here, unless `numbers` says otherwise.
        """
        found = dict(self.stream(texts, search, attention=attention, numbers=numbers))
        return [found[index] for index in range(len(texts))]

    def stream(
        self,
        texts: Sequence[str | Tagged],
        search: Search = GREEDY,
        *,
        attention: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Answer]]]:
        """Like `translate`, but gives (index, answers) batch by batch, texts of like length together."""
        numbers = range(len(texts)) if numbers is None else numbers
        require(len(numbers) == len(texts), f"{len(texts)} text(s) were given {len(numbers)} number(s): one for each")
        sources = [self._tokens(number, text) for number, text in enumerate(texts, start=1)]
        read = [text_of(text) for text in texts]
        lengths = [len(source.ids) for source in sources]
        for rows in by_length(lengths, max(1, BATCH_TOKENS // search.hypotheses)):
            batch = [sources[row] for row in rows]
            found = [best[: search.n_best] for best in self._search(batch, search, [numbers[row] for row in rows])]
            pairs = [(source, best) for source, kept in zip(batch, found, strict=True) for best in kept]
            seen = iter(self.attention(pairs) if attention else [()] * len(pairs))
            for row, source, kept in zip(rows, batch, found, strict=True):
                unknown = self.vocabulary.source.unknown(source)
                yield (
                    row,
                    [
                        Answer(read[row], self.vocabulary.target.decode(best.tokens), best.score, next(seen), unknown)
                        for best in kept
                    ],
                )

    def check_alignment(self, what: str = "an alignment") -> None:
        """Raise where the model has no alignment to show or to search by."""
        if not self.model.alignment_layers:
            raise InputError(
                f"{self.name}: {what} was asked of a model that has no attention over its source; models that have it: "
                'rnn_seq2seq with model.attention = "bahdanau" or "luong", conv_seq2seq, transformer'
            )

    @torch.inference_mode()
    def attention(self, pairs: Sequence[tuple[AnyTokens, Hypothesis]]) -> list[tuple[AttentionMap, ...]]:
        """What each hypothesis attended to: one more pass over what search found, with every layer watched.

        A decoder's steps and its teacher-forced pass compute the same, so this holds for any search. Where the decoder
        has no attention over the source there is no map.
        """
        reading = self.model.alignment_layers
        if not reading:
            return [()] * len(pairs)
        batch = self._batch([(source, best.tokens) for source, best in pairs])
        with watch(self.model) as seen:
            self.model(batch.source, batch.target_in, batch.source_lengths, **told(batch))
        others = sorted(seen.keys() - {*reading}, key=[*seen].index)
        own = [layer for layer in others if not layer.startswith("encoder")]
        order = [*reading, *own, *(layer for layer in others if layer not in own)]
        layers = {name: seen[name].weights.float().cpu() for name in order}
        return [
            tuple(self._map(name, weights[row], source, best) for name, weights in layers.items())
            for row, (source, best) in enumerate(pairs)
        ]

    def _map(self, layer: str, weights: torch.Tensor, source: AnyTokens, hypothesis: Hypothesis) -> AttentionMap:
        """Name the rows and columns of one layer's weights; padding and the query that wrote </s> are left out."""
        written = tuple(self.vocabulary.target.piece(token) for token in hypothesis.tokens)
        if layer in self.model.alignment_layers:
            rows, columns = written, source.pieces
        elif layer.startswith("encoder"):
            rows = columns = source.pieces
        else:
            rows, columns = written, (self.vocabulary.target.piece(self.marks.begin), *written[:-1])
        return AttentionMap(layer, rows, columns, weights[:, : len(rows), : len(columns)].numpy())

    @torch.inference_mode()
    def _search(self, sources: Sequence[AnyTokens], search: Search, numbers: Sequence[int]) -> list[list[Hypothesis]]:
        rules = self._rules(sources, search)
        if search.coverage_penalty:
            self.check_alignment("a coverage penalty")
        batch = self._batch([(source, ()) for source in sources])
        state = self.model.init_state(self.model.encode(batch.source, batch.source_lengths, **told(batch)))
        penalty = search.length_penalty
        if search.sampling is not None:
            return sample(
                self.model, state, rules, search.sampling,
                samples=search.n_best, length_penalty=penalty, numbers=numbers,
            )  # fmt: skip
        if search.beam == 1:
            return [[best] for best in greedy_search(self.model, state, rules, length_penalty=penalty)]
        coverage = None
        if search.coverage_penalty:
            coverage = Coverage(search.coverage_penalty, self.model.alignment_layers[0], batch.source_lengths)
        return beam_search(
            self.model, state, rules,
            beam=search.beam, length_penalty=penalty, coverage=coverage, exact=search.exact,
        )  # fmt: skip

    def _batch(self, pairs: Sequence[tuple[AnyTokens, Sequence[int]]]) -> Batch:
        """Sources, and what is written for them, where the model is."""
        encoded = [
            ParsedPair(source.ids, target, source.tree)
            if isinstance(source, ParsedTokens)
            else EncodedPair(source.ids, target)
            for source, target in pairs
        ]
        batch = collate(encoded, begin=self.marks.begin, end=self.marks.end)
        return with_trees(batch, encoded).to(self.model.device)

    def _rules(self, sources: Sequence[AnyTokens], search: Search) -> Rules:
        """By each text's own length: what else is in the batch must make no difference."""
        most = min(self.model.config.max_length, search.max_length or math.inf)
        prefix = plain_ids(self.vocabulary.target, search.prefix) if search.prefix else []
        least = max(search.min_length, len(prefix))
        if least > most:
            what = "min-length" if search.min_length == least else f"the prefix {search.prefix!r}"
            raise InputError(f"{what} asks for {least} tokens or more, but a translation may have {most} at most")
        if self.marks.unknown in prefix:
            raise InputError(f"the prefix {shown(repr(search.prefix))} holds what the model never saw, and cannot say")
        usual = [max(2 * len(source.ids) + 50, least) for source in sources]
        return Rules(
            batch=len(sources),
            begin=self.marks.begin,
            end=self.marks.end,
            max_length=[int(most if search.max_length else min(longest, most)) for longest in usual],
            min_length=search.min_length,
            never=self.marks.never,
            prefixes=[prefix] * len(sources),
        )

    def fits(self, text: str) -> bool:
        """Whether a text is short enough for the model."""
        return len(self.vocabulary.source.encode(text).ids) <= self.model.config.max_length

    def check(self, texts: Sequence[str | Tagged]) -> None:
        """Raise for the first text that could not be translated, before any work is done; blank ones pass."""
        for number, text in enumerate(texts, start=1):
            if text_of(text).strip():
                self._tokens(number, text)

    def _tokens(self, number: int, given: str | Tagged) -> AnyTokens:
        """The tokens of an input, or an error that says which input and why."""
        text = text_of(given)
        if not text.strip():
            raise InputError(f"input {number} is empty")
        if reads_trees(self.model.config):
            tokens = parsed_tokens(self.vocabulary.source, parsed(given, f"input {number}"))
        else:
            tokens = self.vocabulary.source.encode(text)
        limit = self.model.config.max_length
        if len(tokens.ids) > limit:
            raise InputError(f"input {number} has {len(tokens.ids)} tokens; this model takes at most {limit}")
        return tokens

"""Translation with a sequence-to-sequence model, with the attention of each target token."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.attention import watch
from qkv.config import require
from qkv.datasets.batching import Batch, BatchSize, EncodedPair, batch_by_length, collate
from qkv.datasets.tagged import Tagged, text_of
from qkv.errors import InputError
from qkv.generation import (
    MAX_HYPOTHESES,
    Coverage,
    DecodingConstraints,
    Hypothesis,
    Sampling,
    beam_search,
    greedy_search,
    sample,
)
from qkv.hub import load_as
from qkv.nn.interfaces import EncoderDecoder
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.parsed_source import ParsedPair, ParsedTokens, parsed_tokens, tree_inputs, with_trees
from qkv.pipelines.special_tokens import SpecialTokenIds, encode_plain
from qkv.pipelines.tree_inputs import reads_trees, require_heads
from qkv.runtime.device import pick_device
from qkv.runtime.text import printable
from qkv.tokenizers.tokenizer import Encoded, PretrainedTokenizer, TwoTokenizers
from qkv.tokenizers.vocabulary import AnyVocabulary, Tokens

AnyTokenizer = AnyVocabulary | PretrainedTokenizer | TwoTokenizers
AnyTokens = Tokens | Encoded
BATCH_TOKENS = 8192  # source tokens per batch, including padding and beams


@dataclass(frozen=True)
class Search:
    """Search settings of a translator."""

    beam: int = 1  # beam size; 1 is greedy search
    n_best: int = 1
    length_penalty: float = 1.0  # scores are log p / length ** length_penalty
    coverage_penalty: float = 0.0  # weight of the penalty for source tokens that were not attended to
    min_length: int = 0  # in tokens
    max_length: int | None = None  # default: 2 * source length + 50, up to the model's maximum
    prefix: str = ""  # forced beginning of every translation
    sampling: Sampling | None = None  # sample n_best translations instead of searching
    exact: bool = False  # continue a beam until no open hypothesis can beat the finished ones

    def __post_init__(self) -> None:
        require(1 <= self.beam <= MAX_HYPOTHESES, f"beam must be between 1 and {MAX_HYPOTHESES:,}, not {self.beam}")
        if self.sampling is None:
            require(
                1 <= self.n_best <= self.beam,
                f"n-best must be between 1 and the beam size {self.beam}, not {self.n_best}",
            )
        else:
            require(self.beam == 1, f"sampling cannot be combined with a beam of {self.beam}")
            require(
                1 <= self.n_best <= MAX_HYPOTHESES,
                f"n-best must be between 1 and {MAX_HYPOTHESES:,}, not {self.n_best}",
            )
        require(0 <= self.length_penalty < math.inf, f"length penalty must be at least 0, not {self.length_penalty}")
        require(
            0 <= self.coverage_penalty < math.inf, f"coverage penalty must be at least 0, not {self.coverage_penalty}"
        )
        require(
            self.coverage_penalty == 0 or self.beam > 1,
            "a coverage penalty requires a beam of 2 or more",
        )
        require(not self.exact or self.beam > 1, "exact search requires a beam of 2 or more")
        require(self.min_length >= 0, f"min-length must be at least 0, not {self.min_length}")
        require(
            self.max_length is None or self.max_length >= max(1, self.min_length),
            f"max-length must be at least 1 and at least min-length {self.min_length}, not {self.max_length}",
        )

    @property
    def hypotheses(self) -> int:
        """Number of concurrent hypotheses per text."""
        return self.beam if self.sampling is None else self.n_best


GREEDY = Search()


class Translator:
    """A sequence-to-sequence model with its vocabulary: `Translator("runs/demo")("5 March 2026").text`.

    Models with dependency trees take sentences with heads (`qkv.datasets.tagged.Tagged`), whose tags are ignored; for
    other
    models, such a sentence is its words joined by spaces.
    """

    def __init__(
        self,
        model: str | Path | EncoderDecoder[Any, Any],
        vocabulary: AnyTokenizer | None = None,
        device: str = "auto",
    ):
        loaded = model if isinstance(model, EncoderDecoder) else load_as(EncoderDecoder, model, pick_device(device))
        self.model: EncoderDecoder[Any, Any] = loaded.eval()
        self.name = type(model).__name__ if isinstance(model, EncoderDecoder) else str(model)
        tokenizer = vocabulary or self.model.tokenizer
        if tokenizer is None:
            raise InputError(f"{self.name}: no vocabulary was found next to the weights; pass one")
        self.vocabulary: Any = tokenizer  # AnyTokenizer; both sides are of the same kind, which types cannot express
        self.special_tokens = SpecialTokenIds.from_tokenizer(self.vocabulary.target, self.model.config)

    def __call__(self, text: str | Tagged, *, attention: bool = True, **search: Any) -> Answer:
        """Translate one text, with its attention maps; `search` are the fields of `Search`: `beam=5`."""
        return self.translate([text], Search(**search), attention=attention)[0][0]

    def translate(
        self,
        texts: Sequence[str | Tagged],
        search: Search = GREEDY,
        *,
        attention: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Answer]]:
        """Translate each text, best hypothesis first, with attention maps if `attention`.

        Samples depend on the seed and the number of the text: its index here, unless `numbers` is given.
        """
        answers = dict(self.stream(texts, search, attention=attention, numbers=numbers))
        return [answers[index] for index in range(len(texts))]

    def stream(
        self,
        texts: Sequence[str | Tagged],
        search: Search = GREEDY,
        *,
        attention: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Answer]]]:
        """Like `translate`, but yields (index, answers) batch by batch, texts of similar length together."""
        numbers = range(len(texts)) if numbers is None else numbers
        require(len(numbers) == len(texts), f"{len(texts)} text(s) but {len(numbers)} number(s): pass one per text")
        sources = [self._tokens(number, text) for number, text in enumerate(texts, start=1)]
        source_texts = [text_of(text) for text in texts]
        lengths = [len(source.ids) for source in sources]
        for rows in batch_by_length(lengths, BatchSize(max(1, BATCH_TOKENS // search.hypotheses))):
            batch = [sources[row] for row in rows]
            hypotheses = [best[: search.n_best] for best in self._search(batch, search, [numbers[row] for row in rows])]
            pairs = [
                (source, best)
                for source, best_hypotheses in zip(batch, hypotheses, strict=True)
                for best in best_hypotheses
            ]
            maps = iter(self.attention(pairs) if attention else [()] * len(pairs))
            for row, source, best_hypotheses in zip(rows, batch, hypotheses, strict=True):
                unknown = self.vocabulary.source.unknown_pieces(source)
                yield (
                    row,
                    [
                        Answer(
                            source_texts[row],
                            self.vocabulary.target.decode(best.tokens),
                            best.score,
                            next(maps),
                            unknown,
                        )
                        for best in best_hypotheses
                    ],
                )

    def check_alignment(self, what: str = "an alignment") -> None:
        """Raise if the model has no attention over its source."""
        if not self.model.alignment_layers:
            raise InputError(
                f"{self.name}: {what} requires attention over the source, which this model lacks; models that have it: "
                'rnn_seq2seq with model.decoder = "bahdanau" or "luong", conv_seq2seq, transformer'
            )

    @torch.inference_mode()
    def attention(self, pairs: Sequence[tuple[AnyTokens, Hypothesis]]) -> list[tuple[AttentionMap, ...]]:
        """Attention maps of each hypothesis, from one more forward pass with all layers recorded.

        Decoding steps and the teacher-forced pass compute the same weights, so this holds for any search. Models
        without attention over the source have no maps.
        """
        cross_layers = self.model.alignment_layers
        if not cross_layers:
            return [()] * len(pairs)
        batch = self._batch([(source, best.tokens) for source, best in pairs])
        with watch(self.model) as records:
            self.model(batch.source, batch.target_in, batch.source_lengths, **tree_inputs(batch))
        others = sorted(records.keys() - {*cross_layers}, key=[*records].index)
        decoder_layers = [layer for layer in others if not layer.startswith("encoder")]
        order = [*cross_layers, *decoder_layers, *(layer for layer in others if layer not in decoder_layers)]
        layers = {name: records[name].weights.float().cpu() for name in order}
        return [
            tuple(self._map(name, weights[row], source, best) for name, weights in layers.items())
            for row, (source, best) in enumerate(pairs)
        ]

    def _map(self, layer: str, weights: torch.Tensor, source: AnyTokens, hypothesis: Hypothesis) -> AttentionMap:
        """Label the rows and columns of one layer's weights, without padding and the query that generated </s>."""
        target_pieces = tuple(self.vocabulary.target.piece(token) for token in hypothesis.tokens)
        if layer in self.model.alignment_layers:
            rows, columns = target_pieces, source.pieces
        elif layer.startswith("encoder"):
            rows = columns = source.pieces
        else:
            rows, columns = (
                target_pieces,
                (self.vocabulary.target.piece(self.special_tokens.begin), *target_pieces[:-1]),
            )
        return AttentionMap(layer, rows, columns, weights[:, : len(rows), : len(columns)].numpy())

    @torch.inference_mode()
    def _search(self, sources: Sequence[AnyTokens], search: Search, numbers: Sequence[int]) -> list[list[Hypothesis]]:
        rules = self._rules(sources, search)
        if search.coverage_penalty:
            self.check_alignment("a coverage penalty")
        batch = self._batch([(source, ()) for source in sources])
        state = self.model.init_state(self.model.encode(batch.source, batch.source_lengths, **tree_inputs(batch)))
        penalty = search.length_penalty
        if search.sampling is not None:
            return sample(
                self.model, state, rules, search.sampling,
                samples=search.n_best, length_penalty=penalty, row_ids=numbers,
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
        """Collate sources and targets on the model's device."""
        encoded = [
            ParsedPair(source.ids, target, source.tree)
            if isinstance(source, ParsedTokens)
            else EncodedPair(source.ids, target)
            for source, target in pairs
        ]
        batch = collate(encoded, begin=self.special_tokens.begin, end=self.special_tokens.end)
        return with_trees(batch, encoded).to(self.model.device)

    def _rules(self, sources: Sequence[AnyTokens], search: Search) -> DecodingConstraints:
        """Constraints per text, so that a translation does not depend on the rest of the batch."""
        max_length = min(self.model.config.max_length, search.max_length or math.inf)
        prefix = encode_plain(self.vocabulary.target, search.prefix) if search.prefix else []
        min_length = max(search.min_length, len(prefix))
        if min_length > max_length:
            what = "min-length" if search.min_length == min_length else f"the prefix {search.prefix!r}"
            raise InputError(
                f"{what} requires at least {min_length} tokens, but a translation has at most {max_length}"
            )
        if self.special_tokens.unknown in prefix:
            raise InputError(f"the prefix {printable(repr(search.prefix))} contains unknown tokens")
        default_lengths = [max(2 * len(source.ids) + 50, min_length) for source in sources]
        return DecodingConstraints(
            batch=len(sources),
            begin=self.special_tokens.begin,
            end=self.special_tokens.end,
            max_length=[
                int(max_length if search.max_length else min(length, max_length)) for length in default_lengths
            ],
            min_length=search.min_length,
            suppress_tokens=self.special_tokens.suppress,
            prefix_tokens=[prefix] * len(sources),
        )

    def best(
        self,
        texts: Sequence[str | Tagged],
        search: Search = GREEDY,
        *,
        attention: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Answer]:
        """Translate each text and return the best hypotheses; `progress` is called with the number of finished ones."""
        answers: dict[int, Answer] = {}
        for index, hypotheses in self.stream(texts, search, attention=attention):
            answers[index] = hypotheses[0]
            progress(len(answers))
        return [answers[index] for index in range(len(texts))]

    def fits(self, text: str) -> bool:
        """Whether a text is within the model's maximum length."""
        return len(self.vocabulary.source.encode(text).ids) <= self.model.config.max_length

    def check(self, texts: Sequence[str | Tagged]) -> None:
        """Raise for the first text that cannot be translated; blank texts pass."""
        for number, text in enumerate(texts, start=1):
            if text_of(text).strip():
                self._tokens(number, text)

    def _tokens(self, number: int, sentence: str | Tagged) -> AnyTokens:
        """Encode an input, or raise an error that names it."""
        text = text_of(sentence)
        if not text.strip():
            raise InputError(f"input {number} is empty")
        if reads_trees(self.model.config):
            tokens = parsed_tokens(self.vocabulary.source, require_heads(sentence, f"input {number}"))
        else:
            tokens = self.vocabulary.source.encode(text)
        limit = self.model.config.max_length
        if len(tokens.ids) > limit:
            raise InputError(f"input {number} has {len(tokens.ids)} tokens; this model takes at most {limit}")
        return tokens

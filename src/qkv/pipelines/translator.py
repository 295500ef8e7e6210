"""Translation with a sequence-to-sequence model, with the attention of each target token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import torch

from qkv.attention import watch
from qkv.config import require
from qkv.datasets.batching import EncodedPair, PairBatch, batch_by_length, collate
from qkv.datasets.examples.pair import LANGUAGE_TOKEN, language_token, target_language
from qkv.datasets.examples.tagged import Tagged, text_of
from qkv.errors import InputError, InputTooLongError
from qkv.generation import (
    Coverage,
    DecodingConstraints,
    GenerationConfig,
    Grammar,
    Hypothesis,
    Request,
    Sampling,
    Tokens,
    generate,
)
from qkv.nn.copying import record_copying
from qkv.nn.interfaces import EncoderDecoder
from qkv.pipelines.inputs.text_inputs import MAX_BATCH_TOKENS, inference_batch_size
from qkv.pipelines.inputs.tree_inputs import (
    DependencyTree,
    ParsedPair,
    parsed_encoding,
    reads_trees,
    require_heads,
    tree_arguments,
    with_trees,
)
from qkv.pipelines.output import NO_COPYING, Answer, AttentionMap, AttentionMaps
from qkv.pipelines.pipeline import DecoderPipeline, DecoderTokens, one_or_many
from qkv.runtime.text import printable
from qkv.tokenizers import Encoding

GREEDY = GenerationConfig()
RESULTS_AT_ONCE = 32  # translations whose attention is computed in one pass


class Source(NamedTuple):
    """A tokenized input, with its dependency tree for models that need one."""

    text: str
    encoding: Encoding
    tree: DependencyTree | None = None
    words: tuple[str, ...] = ()  # of a sentence to parse


class Translator(DecoderPipeline):
    """A sequence-to-sequence model with its tokenizer: `Translator("runs/demo")("5 March 2026").text`.

    Models with dependency trees take sentences with heads (`Tagged`), whose tags are ignored; for
    other models, such a sentence is its words joined by spaces. Models with several target languages need the
    `target`, such as "de", or the token of the language at the beginning of each text: "<2de> A dog."

        translator = qkv.Translator("tatoeba-en-de", device="cpu", dtype="int8")
        translator(["A dog.", "Good morning."], num_beams=4)
    """

    task_description: ClassVar = "translation"
    model_class: ClassVar = EncoderDecoder
    input_types: ClassVar[tuple[type, ...]] = (str, Tagged)
    example_input: ClassVar = "Where is the station?"
    model: EncoderDecoder[Any, Any]
    grammar: Grammar[Any] | None = None  # of the outputs

    def setup(self) -> None:
        if self.model.log_mel is not None:
            raise InputError(f"{self.name}: is a speech recognizer: use qkv transcribe")
        self.special_tokens = DecoderTokens.from_tokenizer(self.tokenizer.target, self.model.config)
        vocab = self.tokenizer.source.vocab
        tokens = sorted(filter(LANGUAGE_TOKEN.fullmatch, vocab), key=vocab.__getitem__)
        self.languages = [target_language(token) for token in tokens]  # to choose from

    @one_or_many
    def __call__(
        self,
        texts: Sequence[str | Tagged],
        *,
        target: str | None = None,
        num_beams: int = 1,
        num_return_sequences: int = 1,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        prefix: str = "",
        coverage_penalty: float = 0.0,
        exact: bool = False,
        sampling: Sampling | None = None,
        attention: bool = False,
        batch_size: int | None = None,
    ) -> list[Answer]:
        """Translate one text or several, by greedy search, beam search or sampling.

        Args:
            texts: A text or several; for models with dependency trees, sentences with heads (`Tagged`).
            target: Target language, such as "de", for models with several.
            num_beams: Number of beams; 1 is greedy search.
            num_return_sequences: Number of results for each input, at most `num_beams` unless they are sampled; with
                more than 1, the result for each input is a list, best first.
            length_penalty: Scores are log p / length ** length_penalty; greater values favor longer outputs.
            max_new_tokens: Maximum number of new tokens; by default twice the length of the source plus 50.
            min_new_tokens: Minimum number of new tokens.
            prefix: The beginning of every translation.
            coverage_penalty: Weight of the penalty for source tokens that were not attended to (beam search only).
            exact: Continue beam search until no unfinished hypothesis can beat the finished ones.
            sampling: Sample instead of searching: `qkv.generation.Sampling(temperature=0.7, top_k=50, seed=1)`.
            attention: Compute the attention of all answers of a batch at once, not of each answer on first access.
            batch_size: Number of texts processed at a time; by default as many as fit in memory.

        Returns:
            One `Answer` for each text, with `text`, `score` and `attention`.
        """
        config = GenerationConfig(
            num_beams=num_beams,
            num_return_sequences=num_return_sequences,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            coverage_penalty=coverage_penalty,
            exact=exact,
            sampling=sampling,
        )
        results = self.stream(texts, config, target=target, prefix=prefix, attention=attention, batch_size=batch_size)
        answers = dict(results)
        ordered: list[Any] = [answers[index] for index in range(len(texts))]
        return ordered if num_return_sequences > 1 else [best for (best,) in ordered]

    def stream(
        self,
        texts: Sequence[str | Tagged],
        config: GenerationConfig = GREEDY,
        *,
        target: str | None = None,
        prefix: str = "",
        attention: bool = False,
        batch_size: int | None = None,
        row_ids: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Answer]]]:
        """Yield (index, answers) for each text, batch by batch, texts of similar length together.

        Samples depend on the seed and the row id of the text, which is its index unless `row_ids` are given.
        """
        row_ids = range(len(texts)) if row_ids is None else row_ids
        require(len(row_ids) == len(texts), f"{len(texts)} text(s) but {len(row_ids)} row_ids: pass one per text")
        sources = self.encode(dict(enumerate(texts, start=1)), target)
        for results in self._decode(sources, config, prefix, row_ids, batch_size):
            pairs = [(sources[index], best) for index, hypotheses in results for best in hypotheses]
            maps = iter(self.attention(pairs) if attention else [None] * len(pairs))
            for index, hypotheses in results:
                yield index, [self.answer(sources[index], best, next(maps)) for best in hypotheses]

    def decode_one(self, text: str | Tagged) -> tuple[Source, Hypothesis]:
        """Return the tokens of a text and those of its translation by greedy search."""
        sources = self.encode({1: text})
        ((_, (best,)),) = next(self._decode(sources, GREEDY, "", [0], None))
        return sources[0], best

    def _decode(
        self,
        sources: Sequence[Source],
        config: GenerationConfig,
        prefix: str,
        row_ids: Sequence[int],
        batch_size: int | None,
    ) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
        """Yield (index, hypotheses) of the sources, some at a time."""
        max_tokens = MAX_BATCH_TOKENS // max(config.num_beams, config.num_return_sequences)
        size = inference_batch_size(batch_size, max_tokens)
        if self.engine is not None and not config.coverage_penalty and sources:
            requests = self.requests(sources, config, prefix, row_ids)
            results = self.engine.decode(requests, self.decoding_tokens, config, batch_size=batch_size)
            while some := list(islice(results, RESULTS_AT_ONCE)):
                yield some
            return
        for rows in batch_by_length([len(source.encoding) for source in sources], size):
            batch = [sources[row] for row in rows]
            hypotheses = self._generate(batch, config, prefix, [row_ids[row] for row in rows])
            yield list(zip(rows, hypotheses, strict=True))

    def requests(
        self, sources: Sequence[Source], config: GenerationConfig, prefix: str, row_ids: Sequence[int]
    ) -> list[Request]:
        """Return the requests to the engine for tokenized texts."""
        constraints = self._constraints(sources, config, prefix)
        limits, prefixes = constraints.per_row("max_new_tokens"), constraints.prefix_tokens
        return [
            Request(
                [self.special_tokens.begin], limit, config.min_new_tokens, tokens, source.encoding.ids, row_id,
                self.grammar_input(source, limit),
            )
            for source, limit, tokens, row_id in zip(sources, limits, prefixes, row_ids, strict=True)
        ]  # fmt: skip

    @property
    def decoding_tokens(self) -> Tokens:
        """The end token, those that are never generated, and the grammar."""
        return Tokens(self.special_tokens.end, self.special_tokens.suppressed, grammar=self.grammar)

    def answer(self, source: Source, hypothesis: Hypothesis, maps: AttentionMaps | None = None) -> Answer:
        """Return a hypothesis as an answer; its attention is computed on first access unless `maps` are given."""
        return Answer(
            source.text,
            self.tokenizer.target.decode(hypothesis.tokens),
            hypothesis.score,
            partial(self._attention_of, source, hypothesis) if maps is None else maps,
            self.tokenizer.source.unknown_pieces(source.encoding),
            len(hypothesis.tokens),
            self.tokenizer.special_pieces,
        )

    def _attention_of(self, source: Source, hypothesis: Hypothesis) -> AttentionMaps:
        return self.attention([(source, hypothesis)])[0]

    def check_alignment(self, what: str = "an alignment") -> None:
        """Raise if the model has no attention over its source."""
        if not self.model.alignment_layers:
            raise InputError(
                f"{self.name}: {what} requires attention over the source, which this model lacks; models that have it: "
                'rnn_seq2seq with model.decoder = "bahdanau" or "luong", conv_seq2seq, transformer'
            )

    def check_copying(self) -> None:
        """Raise if the model does not copy words."""
        if getattr(self.model, "copying", None) is None:
            raise InputError(f"{self.name}: {NO_COPYING}")

    @torch.inference_mode()
    def attention(self, pairs: Sequence[tuple[Source, Hypothesis]]) -> list[AttentionMaps]:
        """Attention maps of each hypothesis, from one more forward pass with all layers recorded.

        Decoding steps and the teacher-forced pass compute the same weights, so this holds for any search. Models
        without attention over the source have no maps.
        """
        cross_layers = self.model.alignment_layers
        if not cross_layers:
            return [()] * len(pairs)
        batch = self._batch([(source, best.tokens) for source, best in pairs])
        with watch(self.model) as records, record_copying(self.model) as copies:
            self.model(batch.source, batch.target_in, batch.source_lengths, **tree_arguments(batch))
        tokens = batch.target_out.clamp(min=0)[..., None]  # padding is negative
        copied = [p.gather(2, tokens)[..., 0].clamp(0.0, 1.0).float().cpu().numpy() for p in copies]
        others = sorted(records.keys() - {*cross_layers}, key=[*records].index)
        decoder_layers = [layer for layer in others if not layer.startswith("encoder")]
        order = [*cross_layers, *decoder_layers, *(layer for layer in others if layer not in decoder_layers)]
        layers = {name: records[name].weights.float().cpu() for name in order}
        maps = []
        for row, (source, best) in enumerate(pairs):
            first, *rest = (self._map(name, weights[row], source.encoding, best) for name, weights in layers.items())
            for p in copied:  # at most one: of the layer whose weights are copied
                first = replace(first, copied=p[row, : len(first.rows)])
            maps.append((first, *rest))
        return maps

    def _map(self, layer: str, weights: torch.Tensor, source: Encoding, hypothesis: Hypothesis) -> AttentionMap:
        """Label the rows and columns of one layer's weights, without padding and the query that generated </s>."""
        target = self.tokenizer.target
        target_pieces = tuple(target.piece(token) for token in hypothesis.tokens)
        if layer in self.model.alignment_layers:
            rows, columns = target_pieces, source.pieces
        elif layer.startswith("encoder"):
            rows = columns = source.pieces
        else:
            rows, columns = target_pieces, (target.piece(self.special_tokens.begin), *target_pieces[:-1])
        return AttentionMap(layer, rows, columns, weights[:, : len(rows), : len(columns)].numpy())

    @torch.inference_mode()
    def _generate(
        self, sources: Sequence[Source], config: GenerationConfig, prefix: str, row_ids: Sequence[int]
    ) -> list[list[Hypothesis]]:
        constraints = self._constraints(sources, config, prefix)
        if config.coverage_penalty:
            self.check_alignment("a coverage penalty")
        batch = self._batch([(source, ()) for source in sources])
        state = self.model.init_state(self.model.encode(batch.source, batch.source_lengths, **tree_arguments(batch)))
        coverage = None
        if config.coverage_penalty:
            coverage = Coverage(config.coverage_penalty, self.model.alignment_layers[0], batch.source_lengths)
        with self.simple_search():
            return generate(self.model, state, constraints, config, coverage=coverage, row_ids=row_ids)

    def _batch(self, pairs: Sequence[tuple[Source, Sequence[int]]]) -> PairBatch:
        """Collate sources and targets on the model's device."""
        encoded = [
            EncodedPair(source.encoding.ids, target)
            if source.tree is None
            else ParsedPair(source.encoding.ids, target, source.tree)
            for source, target in pairs
        ]
        batch = collate(encoded, begin=self.special_tokens.begin, end=self.special_tokens.end)
        return with_trees(batch, encoded).to(self.model.device)

    def _constraints(self, sources: Sequence[Source], config: GenerationConfig, prefix: str) -> DecodingConstraints:
        """Constraints per text, so that a translation does not depend on the rest of the batch."""
        target = self.tokenizer.target
        prefix_tokens = target.encode(prefix) if prefix else []
        if target.special_tokens.unk in prefix_tokens:
            raise InputError(f"the prefix {printable(repr(prefix))} contains unknown tokens", field="prefix")
        least = max(config.min_new_tokens, len(prefix_tokens))
        limits = [config.max_new_tokens or max(self.default_length(source), least) for source in sources]
        limits = [min(limit, self.model.config.max_length) for limit in limits]
        return DecodingConstraints(
            batch=len(sources),
            begin=self.special_tokens.begin,
            end=self.special_tokens.end,
            max_new_tokens=limits,
            min_new_tokens=config.min_new_tokens,
            suppress_tokens=self.special_tokens.suppressed,
            prefix_tokens=[prefix_tokens] * len(sources),
            grammar=self.grammar,
            grammar_inputs=[self.grammar_input(source, limit) for source, limit in zip(sources, limits, strict=True)],
        )

    def default_length(self, source: Source) -> int:
        """Most tokens of an output, if `max_new_tokens` is not set."""
        return 2 * len(source.encoding) + 50

    def grammar_input(self, source: Source, limit: int) -> Any:
        """Input of the grammar for an output of at most `limit` tokens."""
        return None

    def best(
        self,
        texts: Sequence[str | Tagged],
        config: GenerationConfig = GREEDY,
        *,
        attention: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Answer]:
        """Translate each text and return the best hypotheses; `progress` is called with the number of finished ones."""
        answers: dict[int, Answer] = {}
        for index, hypotheses in self.stream(texts, config, attention=attention):
            answers[index] = hypotheses[0]
            progress(len(answers))
        return [answers[index] for index in range(len(texts))]

    def fits(self, text: str | Tagged) -> bool:
        """Whether a text is within the model's maximum length."""
        return len(self.tokenizer.source.encode(text_of(text), add_special_tokens=True)) <= self.model.config.max_length

    def check(self, texts: Sequence[str | Tagged], first: int = 1, target: str | None = None) -> None:
        """Raise for the first text that cannot be translated; blank texts pass. Texts are numbered from `first`."""
        self.encode({number: text for number, text in enumerate(texts, start=first) if text_of(text).strip()}, target)

    def _with_language(self, text: str, target: str | None, number: int) -> str:
        """Return a text with the token of the target language, or raise if it is missing, unknown or there already."""
        if target is not None and target not in self.languages:
            if not self.languages:
                raise InputError(f"{self.name}: the model has a single target language: remove target", field="target")
            choice = f"one of {', '.join(self.languages)}"
            raise InputError(
                f"{self.name}: the target language must be {choice}, not {printable(repr(target))}", field="target"
            )
        present = target_language(text) in self.languages
        if present and target is not None:
            token = language_token(target_language(text))
            raise InputError(f"input {number} begins with {token}: omit the target", field="target")
        if self.languages and not present and target is None:
            raise InputError(
                f"input {number}: set the target language, one of {', '.join(self.languages)}, or begin the text with "
                f"{language_token(self.languages[0])}",
                field="target",
            )
        return text if target is None else f"{language_token(target)} {text}"

    def encode(self, inputs: Mapping[int, str | Tagged], target: str | None = None) -> list[Source]:
        """Tokenize inputs by number, or raise an error that names the first invalid one."""
        texts = {number: text_of(sentence) for number, sentence in inputs.items()}
        for number, text in texts.items():
            if not text.strip():
                raise InputError(f"input {number} is empty", field="input")
        texts = {number: self._with_language(text, target, number) for number, text in texts.items()}
        tokenizer = self.tokenizer.source
        if reads_trees(self.model.config):
            sentences = {number: require_heads(sentence, f"input {number}") for number, sentence in inputs.items()}
            sources = [Source(texts[number], *parsed_encoding(tokenizer, sentences[number])) for number in inputs]
        else:
            encodings = tokenizer.encode_with_offsets([*texts.values()], add_special_tokens=True)
            sources = [Source(text, encoding) for text, encoding in zip(texts.values(), encodings, strict=True)]
        limit = self.model.config.max_length
        for number, source in zip(inputs, sources, strict=True):
            if len(source.encoding) > limit:
                raise InputTooLongError(
                    f"input {number} has {len(source.encoding)} tokens; this model takes at most {limit}", field="input"
                )
        return sources

"""Attention maps of text encoders and language models, in every layer and head."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from qkv.attention import Attend, TreePositions, watch
from qkv.attention.layers import Layer, attention_layers
from qkv.datasets.examples.squad import Passage, Question
from qkv.datasets.examples.tagged import Tagged, text_of
from qkv.errors import InputError
from qkv.generation import GenerationConfig, Sampling
from qkv.interpret.encoder_predictions import predict_label, predict_masked, predict_tags, rank_answers
from qkv.interpret.next_tokens import NextToken, next_tokens
from qkv.interpret.operator_record import HeadOperator, record_operator
from qkv.models.bert import MLM_HEADS
from qkv.nn.interfaces import LanguageModel, TextEncoder
from qkv.pipelines.generator import Generator
from qkv.pipelines.inputs.text_inputs import (
    AnyExampleEncoder,
    ExampleEncoder,
    WordExampleEncoder,
    build_example_encoder,
)
from qkv.pipelines.inputs.tree_inputs import DependencyTree, reads_trees, require_heads, tree_positions
from qkv.pipelines.inputs.windows import CLS, make_windows
from qkv.pipelines.mask_filler import Masks
from qkv.pipelines.output import Answer, AttentionMap, Prediction
from qkv.pipelines.pipeline import Pipeline, one_or_many
from qkv.pipelines.question_answerer import QuestionAnswerer
from qkv.pipelines.tagger import encode_sentences, split_sentence
from qkv.runtime.text import with_article
from qkv.tokenizers.sentences import split_sentences
from qkv.tokenizers.words import split_words
from qkv.types import Bool, Float, Int, Tensor

MAX_WEIGHTS = 2**26  # kept in all: 12 layers of 12 heads fit for 680 tokens
MAX_OPERANDS = 2**18  # numbers of the operands of attention kept in all
ANSWERS = 5  # spans of an answer to a question
POOLED = "[text]"  # row name of a query that pools the whole text, of a model without labels


class ModelInput(NamedTuple):
    """Token ids of a text, and their display names."""

    ids: list[int]
    pieces: tuple[str, ...]  # display text of each token
    tree: DependencyTree | None = None
    segments: list[int] | None = None  # 0: question, 1: the text with its answer
    predictions: tuple[Prediction, ...] = ()  # the answers to a question; they determine the window that is shown
    parts: tuple[tuple[str, int], ...] = ()  # display text and position of the words to tag, or of the masks to fill
    truncated: bool = False  # whether the text has more tokens than the model takes
    continuation: str = ""  # that a language model generated; its tokens are the last ones
    prompt_tokens: int | None = None  # number of tokens before the continuation


@dataclass(frozen=True, kw_only=True)
class TextAnswer(Answer):
    """Attention of a text, with the operands of some heads; of a language model also the next tokens."""

    operators: tuple[HeadOperator, ...] = ()
    masks: Mapping[str, Bool[np.ndarray, "queries keys"]] = field(default_factory=dict)  # true: allowed; by layer
    next_tokens: tuple[NextToken, ...] = ()  # after each token
    prompt_tokens: int | None = None  # number of tokens before the generated ones; None if nothing was generated


class AttentionProbe(Pipeline):
    """A text model: `AttentionProbe("folders/bert-base-uncased")("The cat sat.").attention`.

    A text encoder sees a text with its special tokens, a language model the text alone, both truncated to the model's
    maximum length. The answer has the predictions of a classifier, of a tagger for each word, of a masked language
    model for each mask, and of a model of questions for a text that ends with one. The score of a classifier is the
    log-probability of its label; that of a language model is the mean log-probability of a token given those before it.
    """

    task_description: ClassVar = "attention of texts"
    input_types: ClassVar[tuple[type, ...]] = (str, Tagged)
    model_class: ClassVar = object
    unit: ClassVar = "tokens"  # that `max_tokens` counts
    model: TextEncoder | LanguageModel[Any]

    def setup(self) -> None:
        if not isinstance(self.model, TextEncoder | LanguageModel):
            kind = with_article(type(self.model).__name__)
            raise InputError(f"{self.name}: is {kind}, not a text encoder or language model")
        self.layers = attention_layers(self.model)
        if not self.layers:
            raise InputError(f"{self.name}: {type(self.model).__name__} has no attention layers")
        self.encoder: AnyExampleEncoder | None = None  # language models take plain token ids
        if isinstance(self.model, TextEncoder):
            self.encoder = build_example_encoder(self._tokenizer, self.model.config)
            self._tokenizer = self.encoder.tokenizer
            if self.encoder.unit == "sentences":
                raise InputError(f"{self.name}: is a hierarchical model of sentences: use a DocumentProbe")
        self.head = self.model.config.head if isinstance(self.model, TextEncoder) else None
        self.masks: Masks | None = None
        if self.head in MLM_HEADS and self.tokenizer.special_tokens.mask is not None:
            self.masks = Masks(self.tokenizer, self.name)

    @one_or_many
    def __call__(
        self, texts: Sequence[str | Tagged], layer: str | None = None, *, max_new_tokens: int = 0
    ) -> list[TextAnswer]:
        """Return the attention maps of each text, or of each sentence with its heads for models with dependency trees.

        If all layers together exceed MAX_WEIGHTS, the first ones are kept, with `layer` taking precedence. A language
        model continues each text by up to `max_new_tokens` tokens, the most likely ones.
        """
        inputs = [self._encode_input(number, text) for number, text in enumerate(texts, start=1)]
        if max_new_tokens:
            inputs = self._continued([text_of(text) for text in texts], max_new_tokens)
        share = max(1, len(texts))
        return [self._probe(text_of(text), tokens, layer, share) for text, tokens in zip(texts, inputs, strict=True)]

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of a text, without special tokens; None if unbounded."""
        max_length: int | None = getattr(self.model.config, "max_length", None)
        return max_length if max_length is None or self.encoder is None else self.encoder.max_tokens(max_length)

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """The 1-based numbers of the texts that are truncated to the model's maximum length."""
        max_tokens = self.max_tokens
        lengths = [len(self._encode_masked(text)[0]) for text in texts]
        return [
            number for number, length in enumerate(lengths, start=1) if max_tokens is not None and length > max_tokens
        ]

    @torch.inference_mode()
    def _probe(self, text: str, model_input: "ModelInput", layer: str | None, share: int) -> TextAnswer:
        """Run the model on a text; `share` texts share the limits of what is kept."""
        tokens, pieces = torch.tensor([model_input.ids], device=self.model.device), model_input.pieces
        chosen = layers_that_fit(self.layers, len(pieces) ** 2, layer, MAX_WEIGHTS // share)
        following: tuple[NextToken, ...] = ()
        predictions: tuple[Prediction, ...] = ()
        score = math.nan
        with watch(self.model, layers=chosen) as records, record_operator(self.layers, [*records]) as operators:
            if isinstance(self.model, LanguageModel):
                log_p = self.model(tokens)[0].float().log_softmax(dim=-1)
                following = next_tokens(log_p, model_input.ids, self._piece)
                score = float(log_p[:-1].gather(1, tokens[0, 1:, None]).mean())  # NaN for a text of one token
            else:
                hidden = self._encoded(tokens, model_input)
                predictions = model_input.predictions or self._predict(hidden, model_input)
        prediction = model_input.continuation or self._predicted_text(text, predictions)
        if self.head == "classifier":
            score = math.log(predictions[0].candidates[0].probability)
        rank = getattr(self.model.config, "rank", None)  # Linformer: keys are projections of all tokens
        keys = pieces if rank is None else tuple(f"mixture {number}" for number in range(1, rank + 1))
        pooled = prediction or POOLED
        maps = (_map(name, record.weights[0].float().cpu(), pieces, keys, pooled) for name, record in records.items())
        special = () if self._tokenizer is None else self._tokenizer.special_pieces
        return TextAnswer(
            text, prediction, score, tuple(maps), special=special, predictions=predictions,
            operators=operators.heads(MAX_OPERANDS // share), masks=operators.masks(), next_tokens=following,
            prompt_tokens=model_input.prompt_tokens, notes=self._notes(model_input),
        )  # fmt: skip

    def _notes(self, model_input: "ModelInput") -> tuple[str, ...]:
        """Return sentences on an input."""
        if not model_input.truncated:
            return ()
        return (f"Only the first {self.max_tokens:,} tokens are used: the maximum of the model.",)

    def _continued(self, texts: Sequence[str], max_new_tokens: int) -> list["ModelInput"]:
        """Encode texts with the most likely continuation of each."""
        if not isinstance(self.model, LanguageModel):
            raise InputError(f"{self.name}: is {with_article(type(self.model).__name__)}, which does not generate text")
        generator = Generator(self.model, self.tokenizer, self.model.device, use_engine=False)
        config = GenerationConfig(max_new_tokens=max_new_tokens, sampling=Sampling(temperature=0.0))
        inputs = []
        for context in generator.encode(texts, max_new_tokens):
            new = list(generator.stream_tokens(context, config))
            pieces = (*context.pieces, *map(self._piece, new))
            continuation = generator.continuation(context.ids, new)
            inputs.append(
                ModelInput([*context.ids, *new], pieces, continuation=continuation, prompt_tokens=len(context.ids))
            )
        return inputs

    def _encoded(self, tokens: Int[Tensor, "1 length"], model_input: ModelInput) -> Float[Tensor, "1 length dim"]:
        """Return the hidden states of an encoder."""
        assert self.encoder is not None
        options: dict[str, Any] = {}
        if model_input.tree is not None:
            positions = tree_positions([model_input.tree], tokens.shape[1])
            options["tree"] = TreePositions(
                *(values.to(tokens.device) for values in (positions.depth, positions.distance))
            )
        if model_input.segments is not None:
            segments = torch.tensor([model_input.segments], device=tokens.device)
            options["segments"] = segments.clamp(max=self.model.config.segments - 1)
        hidden: Tensor = self.model(self.encoder.lookup(tokens), **options)
        return hidden

    def _predict(self, hidden: Float[Tensor, "1 length dim"], model_input: ModelInput) -> tuple[Prediction, ...]:
        """Return the predictions of the head of an encoder for a text or its parts."""
        assert isinstance(self.model, TextEncoder)
        if self.head == "classifier":
            return predict_label(self.model, hidden)
        if self.head == "tagger":
            return predict_tags(self.model, hidden, model_input.parts)
        return predict_masked(self.model, self.tokenizer, hidden, model_input.parts) if model_input.parts else ()

    def _predicted_text(self, text: str, predictions: Sequence[Prediction]) -> str:
        """Return the label, the tags, the filled text or the answer."""
        best = [prediction.candidates[0].text for prediction in predictions]
        return self.masks.fill(text, best) if self.masks is not None and best else " ".join(best)

    def _encode_input(self, number: int, sentence: str | Tagged) -> "ModelInput":
        """Encode a text, with the display text of its tokens."""
        text = text_of(sentence)
        trees = reads_trees(self.model.config)
        if trees:
            require_heads(sentence, f"input {number}")
        if trees or (self.head == "tagger" and text.strip()):
            return self._encode_words(sentence, trees=trees)
        if self.head == "span" and (question := _question(text)) is not None:
            return self._encode_question(*question)
        ids, pieces, masks = self._encode_masked(text)
        if not text.strip() or not ids:
            raise InputError(f"input {number} is empty", field="input")
        truncated = self.max_tokens is not None and len(ids) > self.max_tokens
        ids, pieces = ids[: self.max_tokens], pieces[: self.max_tokens]
        if self.encoder is None:
            return ModelInput(ids, tuple(pieces), truncated=truncated)
        all_ids, start = self.encoder.add_special_tokens(ids), self.encoder.first_position
        special = self._pieces([*all_ids[:start], *all_ids[start + len(ids) :]])
        parts = tuple((f"mask {n}", start + at) for n, at in enumerate(masks, start=1) if at < len(ids))
        return ModelInput(all_ids, (*special[:start], *pieces, *special[start:]), parts=parts, truncated=truncated)

    def _encode_words(self, sentence: str | Tagged, *, trees: bool) -> "ModelInput":
        """Encode a text as a tagger does, with its tree if the model reads trees; only the first part of a long one."""
        assert self.encoder is not None
        _, _, untagged = split_sentence(sentence)
        encoded = encode_sentences(self.encoder.fresh_copy(), [untagged], {}, self.model.config.max_length, trees=trees)
        example, words = encoded.examples[0], encoded.words[0]
        parts = tuple((untagged.words[word.number], word.position) for word in words)
        return ModelInput(example.ids, self._pieces(example.ids), example.tree, parts=parts)

    def _encode_question(self, question: str, context: str) -> "ModelInput":
        """Answer a question from all windows of its context, and encode the window that has the best answer."""
        answer = QuestionAnswerer(self.model, self.tokenizer)(question, context, top_k=ANSWERS)
        spans = tuple(Passage(span.start, span.end) for span in answer.candidates[:1])
        windows = make_windows(
            ExampleEncoder(self.tokenizer), [Question(question, context, spans)], self.model.config.max_length
        )
        window = next((window for window in windows if window.begin != CLS), windows[0])
        segments = [0] * window.first + [1] * (len(window.ids) - window.first)
        return ModelInput(window.ids, self._pieces(window.ids), segments=segments, predictions=(rank_answers(answer),))

    def _encode_masked(self, text: str) -> tuple[list[int], Sequence[str], list[int]]:
        """Encode a text; return its ids, pieces, and the indices of its masks."""
        if self.masks is None:
            return *self._encode(text), []
        first, *others = self.masks.split(text)
        ids, pieces = self._encode(first) if first.strip() or not others else ([], ())
        masks = []
        for part in others:
            masks.append(len(ids))
            more_ids, more_pieces = self._encode(part) if part.strip() else ([], ())
            ids, pieces = [*ids, self.masks.id, *more_ids], [*pieces, self.masks.token, *more_pieces]
        return ids, pieces, masks

    def _encode(self, text: str) -> tuple[list[int], Sequence[str]]:
        if isinstance(self.encoder, WordExampleEncoder):
            return self.encoder.encode([text])[0], [text[begin:end] for begin, end in split_words(text)]
        (encoding,) = self.tokenizer.encode_with_offsets([text], add_special_tokens=self.encoder is None)
        return encoding.ids, encoding.pieces

    def _pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Display text of special tokens, and of tokens whose text is not known."""
        return () if self._tokenizer is None else tuple(map(self._piece, ids))

    def _piece(self, token: int) -> str:
        # The vocabulary of a model may be padded to a multiple of a power of two.
        return self.tokenizer.piece(token) if token < len(self.tokenizer) else f"[{token}]"


def _question(text: str) -> tuple[str, str] | None:
    """Return the question at the end of a text and the text before it; None if there is none."""
    *context, question = split_sentences(text) or [""]
    return (question, text[: text.rindex(question)]) if context and question.endswith("?") else None


def _map(
    layer: str,
    weights: Float[Tensor, "heads queries keys"],
    pieces: tuple[str, ...],
    keys: tuple[str, ...],
    pooled: str,
) -> AttentionMap:
    if keys is not pieces:
        return AttentionMap(layer, pieces, keys, weights.numpy())
    if weights.shape[1] == len(pieces):
        return AttentionMap(layer, pieces, pieces, align_to_tokens(weights).numpy())
    return AttentionMap(layer, (pooled,) * weights.shape[1], pieces, weights.numpy())


def layers_that_fit(layers: Mapping[str, Attend], weights: int, first: str | None, budget: int) -> list[Layer]:
    """The layers that fit into `budget` weights at `weights` per head; at least one, `first` before the others."""
    if first is not None and first not in layers:
        raise InputError(f"unknown attention layer {first!r}; available: {', '.join(layers)}", field="layer")
    chosen: list[Layer] = []
    for name in sorted(layers, key=lambda name: name != first):
        budget -= (layers[name].heads or 1) * weights
        if budget < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def align_to_tokens(weights: Float[Tensor, "heads length keys"]) -> Float[Tensor, "heads length length"]:
    """Move each weight to the column of the token it belongs to.

    Recurrent models may attend to the last few tokens before the current one only: then the keys of row t are the
    tokens before t.
    """
    length, keys = weights.shape[1:]
    if keys == length:
        return weights
    aligned = weights.new_zeros(*weights.shape[:2], length)
    for row in range(1, length):
        count = min(row, keys)
        aligned[:, row, row - count : row] = weights[:, row, :count]
    return aligned

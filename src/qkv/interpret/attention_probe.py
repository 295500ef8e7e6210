"""Attention maps of text encoders and language models, in every layer and head."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from qkv.attention import Attend, TreePositions, watch
from qkv.attention.layers import Layer, attention_layers
from qkv.datasets.examples.tagged import Tagged, text_of
from qkv.errors import InputError
from qkv.generation import GenerationConfig, Sampling
from qkv.interpret.next_tokens import NextToken, next_tokens
from qkv.interpret.operator_record import HeadOperator, record_operator
from qkv.nn.interfaces import LanguageModel, TextEncoder
from qkv.pipelines.generator import Generator
from qkv.pipelines.inputs.text_inputs import AnyExampleEncoder, WordExampleEncoder, build_example_encoder
from qkv.pipelines.inputs.tree_inputs import DependencyTree, ParsedSentence, reads_trees, require_heads, tree_positions
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.pipeline import Pipeline, one_or_many
from qkv.pipelines.tagger import encode_sentences
from qkv.tokenizers.words import split_words
from qkv.types import Float, Int, Tensor

MAX_WEIGHTS = 2**26  # kept in all: 12 layers of 12 heads fit for 680 tokens
MAX_OPERANDS = 2**18  # numbers of the operands of attention kept in all
POOLED = "[text]"  # row name of a query that pools the whole text, of a model without labels


class Prediction(NamedTuple):
    """A model's prediction for an input."""

    text: str = ""
    score: float = math.nan  # log-probability; NaN if there is no prediction


class ModelInput(NamedTuple):
    """Token ids of a text, and their display names."""

    ids: list[int]
    pieces: tuple[str, ...]  # display text of each token
    tree: DependencyTree | None = None
    continuation: str = ""  # that a language model generated; its tokens are the last ones
    prompt_tokens: int | None = None  # number of tokens before the continuation


@dataclass(frozen=True, kw_only=True)
class TextAnswer(Answer):
    """Attention of a text, with the operands of some heads; of a language model also the next tokens."""

    operators: tuple[HeadOperator, ...] = ()
    next_tokens: tuple[NextToken, ...] = ()  # after each token
    prompt_tokens: int | None = None  # number of tokens before the generated ones; None if nothing was generated


class AttentionProbe(Pipeline):
    """A text model: `AttentionProbe("folders/bert-base-uncased")("The cat sat.").attention`.

    A text encoder sees a text with its special tokens, a language model the text alone, both truncated to the model's
    maximum length. The answer is a classifier's label with its log-probability; for a language model, the score is the
    mean log-probability of a token given those before it.
    """

    task_description: ClassVar = "attention of texts"
    input_types: ClassVar[tuple[type, ...]] = (str, Tagged)
    model_class: ClassVar = object
    unit: ClassVar = "tokens"  # that `max_tokens` counts
    model: TextEncoder | LanguageModel[Any]

    def setup(self) -> None:
        if not isinstance(self.model, TextEncoder | LanguageModel):
            raise InputError(f"{self.name}: is a {type(self.model).__name__}, not a text encoder or language model")
        self.layers = attention_layers(self.model)
        if not self.layers:
            raise InputError(f"{self.name}: {type(self.model).__name__} has no attention layers")
        self.encoder: AnyExampleEncoder | None = None  # language models take plain token ids
        if isinstance(self.model, TextEncoder):
            self.encoder = build_example_encoder(self._tokenizer, self.model.config)
            self._tokenizer = self.encoder.tokenizer
            if self.encoder.unit == "sentences":
                raise InputError(f"{self.name}: is a hierarchical model of sentences: use a DocumentProbe")

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
        lengths = [len(self._encode(text)[0]) for text in texts]
        return [
            number for number, length in enumerate(lengths, start=1) if max_tokens is not None and length > max_tokens
        ]

    @torch.inference_mode()
    def _probe(self, text: str, model_input: "ModelInput", layer: str | None, share: int) -> TextAnswer:
        """Run the model on a text; `share` texts share the limits of what is kept."""
        tokens, pieces = torch.tensor([model_input.ids], device=self.model.device), model_input.pieces
        chosen = layers_that_fit(self.layers, len(pieces) ** 2, layer, MAX_WEIGHTS // share)
        following: tuple[NextToken, ...] = ()
        with watch(self.model, layers=chosen) as records, record_operator(self.layers, [*records]) as operators:
            if isinstance(self.model, LanguageModel):
                log_p = self.model(tokens)[0].float().log_softmax(dim=-1)
                following = next_tokens(log_p, model_input.ids, self._piece)
                score = log_p[:-1].gather(1, tokens[0, 1:, None]).mean()
                prediction = Prediction(model_input.continuation, float(score))  # NaN for a text of one token
            else:
                prediction = self._labelled(tokens, model_input.tree)
        rank = getattr(self.model.config, "rank", None)  # Linformer: keys are projections of all tokens
        keys = pieces if rank is None else tuple(f"mixture {number}" for number in range(1, rank + 1))
        pooled = prediction.text or POOLED
        maps = (_map(name, record.weights[0].float().cpu(), pieces, keys, pooled) for name, record in records.items())
        special = () if self._tokenizer is None else self._tokenizer.special_pieces
        return TextAnswer(
            text, prediction.text, prediction.score, tuple(maps), special=special,
            operators=operators.heads(MAX_OPERANDS // share), next_tokens=following,
            prompt_tokens=model_input.prompt_tokens,
        )  # fmt: skip

    def _continued(self, texts: Sequence[str], max_new_tokens: int) -> list["ModelInput"]:
        """Encode texts with the most likely continuation of each."""
        if not isinstance(self.model, LanguageModel):
            raise InputError(f"{self.name}: is a {type(self.model).__name__}, which does not generate text")
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

    def _labelled(self, tokens: Int[Tensor, "1 length"], tree: DependencyTree | None) -> Prediction:
        assert isinstance(self.model, TextEncoder)
        assert self.encoder is not None
        options = {}
        if tree is not None:
            positions = tree_positions([tree], tokens.shape[1])
            options["tree"] = TreePositions(
                *(values.to(tokens.device) for values in (positions.depth, positions.distance))
            )
        hidden = self.model(self.encoder.lookup(tokens), **options)
        if self.model.config.head != "classifier":
            return Prediction()
        score, label = self.model.logits(hidden)[0].float().log_softmax(dim=-1).max(dim=-1)
        return Prediction(self.model.labels[int(label)], float(score))

    def _encode_input(self, number: int, sentence: str | Tagged) -> "ModelInput":
        """Encode a text, with the display text of its tokens."""
        if reads_trees(self.model.config):
            return self._encode_parsed(require_heads(sentence, f"input {number}"))
        text = text_of(sentence)
        ids, pieces = self._encode(text)
        if not text.strip() or not ids:
            raise InputError(f"input {number} is empty")
        ids, pieces = ids[: self.max_tokens], pieces[: self.max_tokens]
        if self.encoder is None:
            return ModelInput(ids, tuple(pieces))
        all_ids, start = self.encoder.add_special_tokens(ids), self.encoder.first_position
        special = self._pieces([*all_ids[:start], *all_ids[start + len(ids) :]])
        return ModelInput(all_ids, (*special[:start], *pieces, *special[start:]))

    def _encode_parsed(self, sentence: ParsedSentence) -> "ModelInput":
        """Encode a sentence with its tree as a tagger does; only the first part of one that is too long."""
        assert self.encoder is not None
        untagged = Tagged(sentence.words, ("",) * len(sentence.words), sentence.heads)
        example = encode_sentences(
            self.encoder.fresh_copy(), [untagged], {}, self.model.config.max_length, trees=True
        ).examples[0]
        return ModelInput(example.ids, self._pieces(example.ids), example.tree)

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
        raise InputError(f"unknown attention layer {first!r}; available: {', '.join(layers)}")
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

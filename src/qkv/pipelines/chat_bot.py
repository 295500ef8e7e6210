"""Conversation with a dialogue model, with the attention of each word of a response over the history."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from qkv.attention import watch
from qkv.config import require
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, DType, GenerationConfig, Hypothesis, Request, Sampling
from qkv.hub import load_as
from qkv.hub.model_folder import model_name
from qkv.nn.interfaces import EncoderDecoder, Model
from qkv.pipelines.generator import Generator
from qkv.pipelines.output import Answer, AttentionMap, AttentionMaps
from qkv.pipelines.pipeline import ModelSource, Pipeline, describe_network, one_or_many
from qkv.pipelines.translator import Translator
from qkv.registry import names_keywords
from qkv.runtime.device import pick_device
from qkv.runtime.notebook import quoted
from qkv.tokenizers import Encoding, Tokenizer
from qkv.tokenizers.dialogue import (
    HISTORY_TOKENS,
    HISTORY_TURNS,
    SPEAKERS,
    has_speakers,
    history_start,
    truncate_turn,
    with_speakers,
)

MAX_NEW_TOKENS = 60
MIN_HISTORY_TOKENS = 8  # for the end of a message


@dataclass(frozen=True, kw_only=True, repr=False)
class Reply(Answer):
    """A response; its source is the history as it was encoded, with its special tokens as words."""

    history: tuple[str, ...]  # turns that the model was given
    dropped_turns: int = 0  # earlier turns that exceed the limits of the history
    truncated: bool = False  # whether only the end of the last turn was given

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, as `qkv chat --json` prints them."""
        return {
            "text": self.text,
            "score": round(self.score, 6),
            "history": list(self.history),
            "dropped_turns": self.dropped_turns,
            "truncated": self.truncated,
            "unknown": list(self.unknown),
        }


class ChatBot:
    """A dialogue model that keeps the history of a conversation: `ChatBot("runs/chitchat-gru-0")("Hello!").text`.

    The model was trained with the task `dialogue` or `dialogue_lm`.
    """

    input_types: ClassVar = (str,)  # of one message
    as_input = staticmethod(Pipeline.as_input)

    @names_keywords
    def __init__(
        self,
        model: ModelSource,
        tokenizer: Tokenizer | None = None,
        device: str | torch.device = "auto",
        dtype: DType = "auto",
        *,
        history_turns: int = HISTORY_TURNS,
        history_tokens: int = HISTORY_TOKENS,
        use_engine: bool = True,
    ) -> None:
        """Load a model and its tokenizer, and start a conversation.

        Args:
            model: A training run, a saved model, the name of a model (`qkv models`, or "owner/name" on the Hugging Face
                Hub), or a network.
            tokenizer: Replaces the tokenizer saved with the model.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
            dtype: Type of the weights in decoding: "float32", "bfloat16", "int8", or "auto" for that of the model.
            history_turns: Maximum number of turns of the conversation that the model is given.
            history_tokens: Maximum number of tokens of these turns.
            use_engine: Decode with the engine of `qkv.generation` where it supports the model; without it, a short job
                on a GPU need not wait for kernels to be compiled.
        """
        require(history_turns >= 1, f"history_turns must be at least 1, not {history_turns}")
        require(
            history_tokens >= MIN_HISTORY_TOKENS,
            f"history_tokens must be at least {MIN_HISTORY_TOKENS}, not {history_tokens}",
        )
        self.name = model_name(model, network=True)
        self.history_turns, self.history_tokens = history_turns, history_tokens
        self.history: list[str] = []  # turns of the conversation so far, yours and the model's in alternation
        network: Any = model if isinstance(model, nn.Module) else load_as(Model, self.name, pick_device(device))
        tokenizer = network.tokenizer if tokenizer is None else tokenizer
        if tokenizer is None or not has_speakers(tokenizer):
            raise InputError(f"{self.name}: chat requires a model trained with the task dialogue or dialogue_lm")
        self.responder: Seq2SeqResponder | LMResponder
        responder = Seq2SeqResponder if isinstance(network, EncoderDecoder) else LMResponder
        self.responder = responder(network, tokenizer, device, dtype, use_engine=use_engine)
        self.model, self.tokenizer = self.responder.model, tokenizer

    def __repr__(self) -> str:
        return f"ChatBot({quoted(self.name)}: {describe_network(self.model)}, {len(self.history)} turns so far)"

    @one_or_many
    def __call__(
        self,
        messages: Sequence[str],
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[Reply]:
        """Respond to a message, or to several in turn, and add them to the history.

        Args:
            messages: A message, or several.
            max_new_tokens: Maximum number of tokens of a response.
            temperature: Softmax temperature; 0 is greedy search.
            top_k: Sample from the k most likely tokens; by default from all.
            top_p: Sample from the most likely tokens whose probabilities sum to p; by default from all.
            seed: Random seed.

        Returns:
            One `Reply` for each message, with `text`, `score` and `history`.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        config = GenerationConfig(max_new_tokens=max_new_tokens, sampling=sampling)
        return [self.send(message, config) for message in messages]

    def send(self, message: str, config: GenerationConfig) -> Reply:
        """Respond to a message with one set of options, and add both to the history."""
        reply = self.respond([*self.history, message], config)
        self.history += [" ".join(message.split()), reply.text]
        return reply

    def reset(self) -> None:
        """Start a new conversation."""
        self.history = []

    def respond(self, history: Sequence[str], config: GenerationConfig) -> Reply:
        """Return the next turn after a history, whose last turn is the one to respond to; `history` is not kept.

        Samples depend on the seed and on the number of turns.
        """
        turns = [" ".join(turn.split()) for turn in history]
        if not turns or not turns[-1]:
            raise InputError("the message is empty")
        limit = self._max_history_tokens(config)
        recent = turns[-self.history_turns :]
        lengths = [len(ids) for ids in self.tokenizer.target.encode(recent)]
        turns_in_context = recent[history_start(lengths, self.history_turns, limit) :]
        last = turns_in_context[-1]
        if len(turns_in_context) == 1:
            turns_in_context = [truncate_turn(self.tokenizer, last, limit)]
        (reply,) = (reply for _, reply in self.stream(["\n".join(turns_in_context)], config, row_ids=[len(turns)]))
        return replace(reply, dropped_turns=len(turns) - len(turns_in_context), truncated=turns_in_context[-1] != last)

    def stream(
        self, histories: Sequence[str], config: GenerationConfig, *, row_ids: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (index, reply) for each of several histories within the limits, one turn per line, in any order."""
        config = config.replace(min_new_tokens=1)  # a turn is not empty
        row_ids = range(len(histories)) if row_ids is None else row_ids
        for index, answer in self.responder.answers(histories, config, row_ids):
            turns = tuple(histories[index].split("\n"))
            (encoding,) = self.tokenizer.target.encode_with_offsets([turns[-1]])
            yield index, Reply(
                with_speakers(histories[index]), answer.text, answer.score, answer.maps,
                self.tokenizer.unknown_pieces(encoding), answer.new_tokens, history=turns,
            )  # fmt: skip

    def check(self, config: GenerationConfig) -> None:
        """Raise if responses of this length leave no room for the history."""
        self._max_history_tokens(config)

    def _max_history_tokens(self, config: GenerationConfig) -> int:
        assert config.max_new_tokens is not None
        most = self.model.config.max_length - self.responder.shares_context * (config.max_new_tokens - 1)
        if most < MIN_HISTORY_TOKENS:
            raise InputError(
                f"max_new_tokens = {config.max_new_tokens} leaves no room for the history in the model's context of "
                f"{self.model.config.max_length} tokens: lower it"
            )
        return int(min(self.history_tokens, most))


class Seq2SeqResponder(Translator):
    """An encoder-decoder from histories to responses."""

    task_description: ClassVar = "dialogue"
    shares_context: ClassVar = False  # whether the history and the response together have at most max_length tokens

    def setup(self) -> None:
        super().setup()
        suppressed = [*self.special_tokens.suppressed, *_speaker_ids(self.tokenizer)]
        self.special_tokens = replace(self.special_tokens, suppressed=suppressed)

    def answers(
        self, histories: Sequence[str], config: GenerationConfig, row_ids: Sequence[int]
    ) -> Iterator[tuple[int, Answer]]:
        """Yield (index, answer) for each history."""
        for index, (answer,) in self.stream(histories, config, row_ids=row_ids):
            yield index, answer


class LMResponder(Generator):
    """A language model of dialogues, which continues a history."""

    task_description: ClassVar = "dialogue"
    shares_context: ClassVar = True

    def setup(self) -> None:
        tokenizer = self.tokenizer
        super().setup()
        self._tokenizer = tokenizer  # of histories, with speakers
        self.suppressed += _speaker_ids(tokenizer)

    def answers(
        self, histories: Sequence[str], config: GenerationConfig, row_ids: Sequence[int]
    ) -> Iterator[tuple[int, Answer]]:
        """Yield (index, answer) for each history."""
        assert config.max_new_tokens is not None
        contexts = self.encode(histories, config.max_new_tokens)
        for index, (best,) in self._decode(contexts, config, None, row_ids):
            maps = partial(self._attention_of, contexts[index], best)
            text = self.tokenizer.target.decode(best.tokens)
            yield index, Answer(histories[index], text, best.score, maps, new_tokens=len(best.tokens))

    def _request(self, context: Encoding, row_id: int, config: GenerationConfig) -> Request:
        return replace(super()._request(context, row_id, config), min_new_tokens=config.min_new_tokens)

    def _constraints(self, contexts: Sequence[Encoding], config: GenerationConfig) -> DecodingConstraints:
        return replace(super()._constraints(contexts, config), min_new_tokens=config.min_new_tokens)

    @torch.inference_mode()
    def _attention_of(self, context: Encoding, hypothesis: Hypothesis) -> AttentionMaps:
        """Attention of the queries that generated a response over its history; the rest is on the response itself.

        The first map has the heads of all layers.
        """
        tokens = torch.tensor([[*context.ids, *hypothesis.tokens[:-1]]], device=self.model.device)
        with watch(self.model) as records:
            self.model(tokens)
        rows = tuple(map(self.tokenizer.target.piece, hypothesis.tokens))
        layers = {
            name: record.weights[0, :, len(context) - 1 :, : len(context)].float().cpu().numpy()
            for name, record in records.items()
        }
        if not layers:
            return ()
        layers = {"all layers": np.concatenate([*layers.values()]), **layers}
        return tuple(AttentionMap(name, rows, context.pieces, weights) for name, weights in layers.items())


def _speaker_ids(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.vocab[speaker] for speaker in SPEAKERS]

"""Text generation with a language model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.config import require
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, Sampling, sample
from qkv.hub import load_as
from qkv.nn.interfaces import LanguageModel
from qkv.pipelines.special_tokens import suppressed_tokens
from qkv.runtime.device import pick_device
from qkv.tokenizers.tokenizer import Encoded, PretrainedTokenizer
from qkv.tokenizers.vocabulary import END, Tokens, Vocabulary

MAX_TOKENS = 10_000_000  # per call: the random numbers of all of them are held in memory
DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True)
class Generated:
    """A generated continuation of a prompt."""

    prompt: str
    continuation: str
    score: float  # mean log-probability per generated token
    unknown: tuple[str, ...] = ()  # characters or words of the prompt that are not in the vocabulary

    @property
    def text(self) -> str:
        """The prompt and its continuation."""
        return self.prompt + self.continuation


class Generator:
    """A language model with its vocabulary: `Generator("runs/shakespeare-lstm-0")("To be", tokens=100).text`."""

    def __init__(
        self,
        model: str | Path | LanguageModel[Any],
        vocabulary: Vocabulary | PretrainedTokenizer | None = None,
        device: str = "auto",
    ) -> None:
        loaded = model if isinstance(model, LanguageModel) else load_as(LanguageModel, model, pick_device(device))
        self.model: LanguageModel[Any] = loaded.eval()
        tokenizer = vocabulary or self.model.tokenizer
        if tokenizer is None:
            name = type(model).__name__ if isinstance(model, LanguageModel) else model
            raise InputError(f"{name}: no vocabulary was found next to the weights; pass one")
        self.vocabulary: Any = tokenizer.target  # Vocabulary or PretrainedTokenizer
        # Models of one running text have no end token; released models and models of documents do.
        ends = getattr(self.model.config, "ends", False)
        self.end = (
            self.vocabulary.special_tokens.end if not isinstance(self.vocabulary, Vocabulary) else END if ends else None
        )

    def __call__(
        self,
        prompt: str,
        *,
        tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Generated:
        """Sample one continuation of at most `tokens` tokens; it depends on the seed."""
        return next(self.generate([prompt], tokens, Sampling(temperature, top_k, top_p, seed)))[0]

    def generate(
        self, prompts: Sequence[str], tokens: int, sampling: Sampling = DEFAULT_SAMPLING, *, samples: int = 1
    ) -> Iterator[list[Generated]]:
        """Sample continuations of each prompt; they depend on the seed, the prompt's index and the sample's."""
        require(tokens >= 1, f"tokens must be at least 1, not {tokens}")
        require(samples >= 1, f"samples must be at least 1, not {samples}")
        require(
            tokens * samples <= MAX_TOKENS,
            f"{samples} sample(s) of {tokens} tokens exceed the limit of {MAX_TOKENS:,} tokens per call",
        )
        encoded = [self._tokens(number, prompt) for number, prompt in enumerate(prompts, start=1)]
        for number, context in enumerate(encoded, start=1):
            self._check_context(number, len(context.ids), tokens)
        for number, (prompt, context) in enumerate(zip(prompts, encoded, strict=True)):
            yield self._continue(number, prompt, context, tokens, sampling, samples)

    def _check_context(self, number: int, prompt_length: int, tokens: int) -> None:
        """Raise if the prompt and its continuation exceed the model's context."""
        context_length = self.model.max_length
        if context_length is not None and prompt_length + tokens - 1 > context_length:
            raise InputError(
                f"prompt {number} has {prompt_length} token(s); {tokens} new ones exceed the model's context of "
                f"{context_length}: request at most {max(0, context_length + 1 - prompt_length)}, or shorten the prompt"
            )

    @torch.inference_mode()
    def _continue(
        self, number: int, prompt: str, context: Tokens | Encoded, tokens: int, sampling: Sampling, samples: int
    ) -> list[Generated]:
        *first, last = context.ids
        state = self.model.init_state(1)
        if first:
            _, state = self.model.forward_from(torch.tensor([first], device=self.model.device), state)
        suppress = [
            token for token in suppressed_tokens(self.vocabulary, self.model.config.vocab_size) if token != self.end
        ]
        rules = DecodingConstraints(batch=1, begin=last, end=self.end, max_length=tokens, suppress_tokens=suppress)
        (hypotheses,) = sample(self.model, state, rules, sampling, samples=samples, row_ids=[number])
        # Decode together with the prompt: the text of a subword, e.g. its leading space, can depend on its context.
        prompt_text, unknown = self.vocabulary.decode(context.ids), self.vocabulary.unknown_pieces(context)
        return [
            Generated(
                prompt,
                self.vocabulary.decode([*context.ids, *hypothesis.tokens]).removeprefix(prompt_text),
                hypothesis.score,
                unknown,
            )
            for hypothesis in hypotheses
        ]

    def _tokens(self, number: int, prompt: str) -> Tokens | Encoded:
        """Encode a prompt, or raise an error that names it."""
        tokens = self.vocabulary.encode(prompt)
        if not tokens.ids:
            raise InputError(f"prompt {number} is empty: a language model needs at least one token of context")
        return tokens

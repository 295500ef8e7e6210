"""Generation: a language model goes on with a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.config import require
from qkv.data.tokenizer import Encoded, PretrainedTokenizer
from qkv.data.vocabulary import END, Tokens, Vocabulary
from qkv.errors import InputError
from qkv.generation import Rules, Sampling, sample
from qkv.interop import load_as
from qkv.nn.language_model import LanguageModel
from qkv.runtime.device import pick_device
from qkv.tasks.marks import never_written

MOST_TOKENS = 10_000_000  # that one call writes: their random numbers are held in memory
AS_IT_IS = Sampling()


@dataclass(frozen=True)
class Generated:
    """How a text may go on."""

    prompt: str
    continuation: str
    score: float  # log-probability a token of what was written
    unknown: tuple[str, ...] = ()  # what of the prompt the model never saw

    @property
    def text(self) -> str:
        """The prompt and what follows it."""
        return self.prompt + self.continuation


class Generator:
    """A language model with its vocabulary: `Generator("runs/shakespeare-lstm-0")("To be", tokens=100).text`."""

    def __init__(
        self,
        model: str | Path | LanguageModel[Any],
        vocabulary: Vocabulary | PretrainedTokenizer | None = None,
        device: str = "auto",
    ) -> None:
        given = model if isinstance(model, LanguageModel) else load_as(LanguageModel, model, pick_device(device))
        self.model: LanguageModel[Any] = given.eval()
        found = vocabulary or self.model.tokenizer
        if found is None:
            name = type(model).__name__ if isinstance(model, LanguageModel) else model
            raise InputError(f"{name}: a generator needs a vocabulary, and there is none beside the weights")
        self.vocabulary: Any = found.target  # Vocabulary or PretrainedTokenizer, each with tokens of its own kind
        # A text that was learned as one has no end; a released model, or one of documents, says when it is done.
        ends = getattr(self.model.config, "ends", False)
        self.end = self.vocabulary.roles.end if not isinstance(self.vocabulary, Vocabulary) else END if ends else None

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
        """One way in which a text may go on, for so many tokens; another seed, another way."""
        return next(self.generate([prompt], tokens, Sampling(temperature, top_k, top_p, seed)))[0]

    def generate(
        self, prompts: Sequence[str], tokens: int, how: Sampling = AS_IT_IS, *, samples: int = 1
    ) -> Iterator[list[Generated]]:
        """Ways in which each text may go on. The seed, the prompt's number and the sample's decide what is drawn."""
        require(tokens >= 1, f"one token at least has to be written, not {tokens}")
        require(samples >= 1, f"one sample at least has to be drawn, not {samples}")
        require(
            tokens * samples <= MOST_TOKENS,
            f"{samples} sample(s) of {tokens} tokens are more than {MOST_TOKENS:,} tokens: ask for fewer at a time",
        )
        read = [self._tokens(number, prompt) for number, prompt in enumerate(prompts, start=1)]
        for number, before in enumerate(read, start=1):
            self._require_room(number, len(before.ids), tokens)
        for number, (prompt, before) in enumerate(zip(prompts, read, strict=True)):
            yield self._go_on(number, prompt, before, tokens, how, samples)

    def _require_room(self, number: int, given: int, tokens: int) -> None:
        """Raise where a prompt and what shall follow it are more than the model can look at."""
        horizon = self.model.max_length
        if horizon is not None and given + tokens - 1 > horizon:
            raise InputError(
                f"prompt {number} has {given} token(s), and {tokens} more were asked for, but the model can look at "
                f"{horizon}: ask for {max(0, horizon + 1 - given)} at most, or shorten the prompt"
            )

    @torch.inference_mode()
    def _go_on(
        self, number: int, prompt: str, before: Tokens | Encoded, tokens: int, how: Sampling, samples: int
    ) -> list[Generated]:
        *first, last = before.ids
        state = self.model.init_state(1)
        if first:
            _, state = self.model.forward_from(torch.tensor([first], device=self.model.device), state)
        never = [one for one in never_written(self.vocabulary, self.model.config.vocabulary_size) if one != self.end]
        rules = Rules(batch=1, begin=last, end=self.end, max_length=tokens, never=never)
        (found,) = sample(self.model, state, rules, how, samples=samples, numbers=[number])
        # Decoded with the prompt, for a subword may need to know what stands before it: a space, say.
        begun, unknown = self.vocabulary.decode(before.ids), self.vocabulary.unknown(before)
        return [
            Generated(
                prompt, self.vocabulary.decode([*before.ids, *one.tokens]).removeprefix(begun), one.score, unknown
            )
            for one in found
        ]

    def _tokens(self, number: int, prompt: str) -> Tokens | Encoded:
        """The tokens of a prompt, or an error that says which prompt and why."""
        tokens = self.vocabulary.encode(prompt)
        if not tokens.ids:
            raise InputError(f"prompt {number} is empty: a language model needs a token to go on from")
        return tokens

"""Speculative decoding: guess the next tokens cheaply and check all of them in one pass of the model.

A token is chosen from the model's own distribution at every position, by greedy search or with the random number of
that position, and guesses are kept only as long as they are equal to it. So the result is exactly that of decoding
token by token, for greedy search and for sampling alike (Leviathan, Kalman and Matias 2023 for the idea; there, samples
are exact in distribution).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from qkv.generation.runner import Runner
from qkv.types import Float, Int, Tensor

# Choose tokens from logits, given the index of each text and the number of guesses that precede the token.
Choose = Callable[[Float[Tensor, "rows vocabulary"], Sequence[tuple[int, int]]], Int[Tensor, "rows"]]


class Draft(ABC):
    """Guesses the next tokens of sequences."""

    @abstractmethod
    def propose(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[list[int]]:
        """Return up to `counts[i]` guesses for each text; `choose` picks tokens as the model would."""


class PromptLookup(Draft):
    """Guesses that the text continues as it did after the last occurrence of its last tokens (Saxena 2023).

    It helps where outputs repeat parts of their inputs, as in summaries, corrections and code.
    """

    def __init__(self, max_ngram: int = 3) -> None:
        self.max_ngram = max_ngram

    def propose(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[list[int]]:
        return [self._look_up(list(text), count) for text, count in zip(texts, counts, strict=True)]

    def _look_up(self, text: list[int], count: int) -> list[int]:
        for size in range(min(self.max_ngram, len(text) - 1), 0, -1):
            last = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == last:
                    return text[start + size : start + size + count]
        return []


class AssistantModel(Draft):
    """Guesses with a smaller model of the same vocabulary."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._cached: dict[int, list[int]] = {}  # tokens in the cache of each row

    def propose(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[list[int]]:
        guesses: list[list[int]] = [[] for _ in rows]
        self._keep_common_beginnings(rows, texts)
        new = [list(text[len(self._cached[row]) :]) for row, text in zip(rows, texts, strict=True)]
        active = [index for index, count in enumerate(counts) if count > 0]
        while active:
            fed = [new[index] if not guesses[index] else guesses[index][-1:] for index in active]
            logits = self._runner.extend([rows[index] for index in active], fed)
            for index, tokens in zip(active, fed, strict=True):
                self._cached[rows[index]] += tokens
            chosen = choose(logits, [(index, len(guesses[index])) for index in active]).tolist()
            for index, token in zip(active, chosen, strict=True):
                guesses[index].append(token)
            active = [index for index in active if len(guesses[index]) < counts[index]]
        return guesses

    def _keep_common_beginnings(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
        """Drop cached guesses that were wrong, and the tokens of an earlier text in the same row."""
        for row, text in zip(rows, texts, strict=True):
            cached = self._cached.get(row, [])
            pairs = zip(cached, text[:-1], strict=False)  # at least one token is fed
            common = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(cached), len(text) - 1))
            if common == 0:
                self._runner.reset([row])
            self._cached[row] = cached[:common]
        self._runner.truncate(rows, [len(self._cached[row]) for row in rows])


def accepted(guesses: Sequence[int], chosen: Sequence[int]) -> int:
    """Return the number of guesses that equal the tokens chosen by the model, from the first on."""
    pairs = enumerate(zip(guesses, chosen, strict=False))
    return next((index for index, (guess, token) in pairs if guess != token), len(guesses))

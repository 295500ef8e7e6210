"""Interface of the decoders that the engine runs: rows of cached tokens on some device."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from qkv.generation.sampling import Sampling, sample_from
from qkv.types import Float, Int, Tensor


class Runner(ABC):
    """A batch of rows, each a sequence of cached tokens; a row can be reset and reused at any step."""

    rows: int
    vocab_size: int
    device: torch.device

    @abstractmethod
    def encode(self, sources: Sequence[int], inputs: Sequence[Any]) -> None:
        """Encode token ids or images, and keep what the decoder needs of them under the given numbers."""

    @abstractmethod
    def reset(self, rows: Sequence[int], sources: Sequence[int] = ()) -> None:
        """Empty rows and, for encoder-decoders, assign their sources, which are encoded next."""

    def begin(self, rows: Sequence[int], inputs: Sequence[Any]) -> None:  # noqa: B027  (most runners have no grammar)
        """Set the inputs of the grammar for rows that were reset; a runner without a grammar has none."""

    @abstractmethod
    def reorder(self, rows: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        """Let each of `rows` continue the tokens of its parent."""

    @abstractmethod
    def step(self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append one token to each row; return the logits after it."""

    @abstractmethod
    def extend(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], wanted: Sequence[int] | None = None
    ) -> Float[Tensor, "positions vocabulary"]:
        """Append any number of tokens to each row; return the logits after the last `wanted` of each row (one each)."""

    @abstractmethod
    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Drop the cached tokens of each row beyond a length."""

    def step_all(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append one token to every row; return the logits after it. Full rows overwrite their last token."""
        return self.step(torch.arange(self.rows), tokens)

    def prefill(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Fill empty rows with any number of tokens, whose logits are not needed."""
        filled = [(row, text) for row, text in zip(rows, tokens, strict=True) if text]
        if filled:
            self.extend([row for row, _ in filled], [text for _, text in filled])

    def log_sum_exp(self, logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
        """Return the normalizers of the logits."""
        return logits.logsumexp(dim=-1)

    def top_k(
        self, values: Float[Tensor, "rows vocabulary"], k: int
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        """Return the k largest values of each row and their indices."""
        top, indices = values.max(dim=-1, keepdim=True) if k == 1 else values.topk(k)
        return top, indices

    def sample(
        self, log_p: Float[Tensor, "rows vocabulary"], sampling: Sampling, uniform: Float[Tensor, "rows"]
    ) -> Int[Tensor, "rows"]:
        """Sample a token of each row, with one random number in [0, 1) each."""
        return sample_from(sampling.filter_probs(log_p), uniform)


class GuessRunner(Runner):
    """A runner for speculative decoding without waiting for the device: several rows can share one text."""

    lengths: Int[Tensor, "rows"]  # cached tokens of each row

    @abstractmethod
    def step_guesses(self, tokens: Int[Tensor, "slots width"]) -> Float[Tensor, "rows vocabulary"]:
        """Append several tokens to the text that `width` consecutive rows share, one by each row."""

    @abstractmethod
    def advance(self, counts: Int[Tensor, "slots"]) -> None:
        """Keep the first `counts` of the tokens that `step_guesses` appended."""


class RunnerFactory(ABC):
    """A model prepared for decoding on its device: makes the rows of a batch."""

    vocab_size: int
    device: torch.device
    description: str  # the implementation that runs, e.g. "CPU kernels (AVX-512), bfloat16 weights"
    has_source: bool  # whether the model is an encoder-decoder
    can_truncate: bool = True  # whether runners implement `truncate`
    max_rows: int  # sequences decoded at once by default, beams counted
    batch_invariant: bool = False  # whether the logits of a row are the same, bit for bit, in any batch

    @abstractmethod
    def make(self, rows: int, capacity: int, sources: int, source_capacity: int) -> Runner:
        """Allocate rows of up to `capacity` tokens, and sources of up to `source_capacity`."""

    @abstractmethod
    def cache_bytes(self, rows: int, capacity: int, source_capacity: int) -> int:
        """Return the memory of the rows that share one source."""

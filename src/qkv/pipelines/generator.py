"""Text generation with a language model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.config import require
from qkv.datasets.batching import BatchSize, batch_by_length
from qkv.errors import InputError, InputTooLongError
from qkv.generation import (
    DecodingConstraints,
    DType,
    GenerationConfig,
    Hypothesis,
    PromptLookup,
    Request,
    Sampling,
    SpeculativeConfig,
    Tokens,
    generate,
    stream,
)
from qkv.nn.interfaces import LanguageModel
from qkv.pipelines.inputs.text_inputs import inference_batch_size
from qkv.pipelines.pipeline import DecoderPipeline, ModelSource, one_or_many
from qkv.pipelines.text_stream import TextStream
from qkv.registry import names_keywords
from qkv.runtime.notebook import Drawable, quoted
from qkv.tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, repr=False)
class GeneratedText(Drawable):
    """A generated continuation of a prompt."""

    prompt: str
    continuation: str
    score: float  # mean log-probability per generated token
    unknown: tuple[str, ...] = ()  # characters or words of the prompt that are not in the vocabulary
    new_tokens: int = 0  # number of generated tokens, without the end token

    @property
    def text(self) -> str:
        """The prompt and its continuation."""
        return self.prompt + self.continuation

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, as `qkv generate --json` prints them."""
        return {
            "prompt": self.prompt,
            "continuation": self.continuation,
            "text": self.text,
            "score": round(self.score, 6),
            "unknown": list(self.unknown),
        }

    def __repr__(self) -> str:
        return f"GeneratedText({quoted(self.text)}, score {self.score:.3f}, {self.new_tokens} new tokens)"

    def table_row(self) -> tuple[str, str, str]:
        return self.prompt, self.continuation, f"{self.score:.4g}"


class Generator(DecoderPipeline):
    """A language model with its tokenizer: `Generator("runs/shakespeare-lstm-0")("To be", max_new_tokens=100).text`.

    generator = qkv.Generator("openai-community/gpt2", dtype="bfloat16")
    generator("To be", temperature=0.8, top_k=50, num_return_sequences=3)
    """

    task_description: ClassVar = "text generation"
    model_class: ClassVar = LanguageModel
    example_input: ClassVar = "Once upon a time"
    model: LanguageModel[Any]

    @names_keywords
    def __init__(
        self,
        model: ModelSource,
        tokenizer: Tokenizer | None = None,
        device: str | torch.device = "auto",
        dtype: DType = "auto",
        *,
        assistant_model: ModelSource | None = None,
        prompt_lookup: bool = False,
        use_engine: bool = True,
    ) -> None:
        """Load a model and its tokenizer.

        In speculative decoding, an assistant or the text so far guesses tokens that the model checks several at a time,
        with the same results.

        Args:
            model: A training run, a saved model, the name of a model (`qkv models`, or "owner/name" on the Hugging Face
                Hub), or a network.
            tokenizer: Replaces the tokenizer saved with the model.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
            dtype: Type of the weights in decoding: "float32", "bfloat16", "int8", or "auto" for that of the model.
            assistant_model: A smaller model of the same vocabulary that guesses tokens.
            prompt_lookup: Guess tokens by looking up the last ones in the text so far.
            use_engine: Decode with the engine of `qkv.generation` where it supports the model; without it, a short job
                on a GPU need not wait for kernels to be compiled.
        """
        super().__init__(model, tokenizer, device, dtype, use_engine=use_engine)
        require(assistant_model is None or not prompt_lookup, "choose assistant_model or prompt_lookup, not both")
        self._speculative = SpeculativeConfig(PromptLookup()) if prompt_lookup else None
        if assistant_model is not None:
            assistant = Generator(assistant_model, tokenizer, device, dtype)
            if assistant.engine is None:
                raise InputError(f"{assistant.name}: cannot assist, it is decoded by {assistant.decoding}")
            self._speculative = SpeculativeConfig(assistant.engine)
        if self._speculative is not None:
            if self.engine is None:
                raise InputError(
                    f"{self.name}: speculative decoding needs the engine; it is decoded by {self.decoding}"
                )
            self.engine.check_speculative(self._speculative)

    def setup(self) -> None:
        self._tokenizer = self.tokenizer.target
        special_tokens = self.tokenizer.special_tokens
        # Models of one running text have no end token; released models and models of documents do.
        self.end = special_tokens.end if getattr(self.model.config, "has_end_token", False) else None
        unused = [] if self.end is not None or special_tokens.end is None else [special_tokens.end]
        self.suppressed = [*special_tokens.suppressed, *unused]

    @one_or_many
    def __call__(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        num_return_sequences: int = 1,
        batch_size: int | None = None,
    ) -> list[GeneratedText]:
        """Continue one prompt or several with sampled tokens.

        Samples depend on the seed and on the index of the prompt and of the sample.

        Args:
            prompts: A text to continue, or several.
            max_new_tokens: Maximum number of new tokens.
            temperature: Softmax temperature; 0 is greedy search.
            top_k: Sample from the k most likely tokens; by default from all.
            top_p: Sample from the most likely tokens whose probabilities sum to p; by default from all.
            seed: Random seed.
            num_return_sequences: Number of samples for each prompt; with more than 1, the result for each prompt is a
                list.
            batch_size: Number of prompts processed at a time; by default as many as fit in memory.

        Returns:
            One `GeneratedText` for each prompt, with `text`, `continuation` and `score`.
        """
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            num_return_sequences=num_return_sequences,
            sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
        )
        results = dict(self.stream_results(prompts, config, batch_size=batch_size))
        answers: list[Any] = [results[row] for row in range(len(prompts))]
        return answers if num_return_sequences > 1 else [answer for (answer,) in answers]

    def stream_results(
        self,
        prompts: Sequence[str],
        config: GenerationConfig,
        *,
        batch_size: int | None = None,
        row_ids: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[GeneratedText]]]:
        """Yield (index, samples) for each prompt as it is finished, in any order.

        Samples depend on the seed and the row id of the prompt, which is its index unless `row_ids` are given.
        """
        assert config.max_new_tokens is not None
        row_ids = range(len(prompts)) if row_ids is None else row_ids
        require(len(row_ids) == len(prompts), f"{len(prompts)} prompt(s) but {len(row_ids)} row_ids: pass one each")
        contexts = self.encode(prompts, config.max_new_tokens)
        for index, hypotheses in self._decode(contexts, config, batch_size, row_ids):
            yield index, [self._result(prompts[index], contexts[index], hypothesis) for hypothesis in hypotheses]

    @names_keywords
    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[str]:
        """Yield the continuation of a prompt piece by piece, as it is generated."""
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        config = GenerationConfig(max_new_tokens=max_new_tokens, sampling=sampling)
        (context,) = self.encode([prompt], max_new_tokens)
        text = TextStream(self.tokenizer, context.ids)
        for token in self.stream_tokens(context, config):
            if (piece := text.append(token)) is not None:
                yield piece
        if rest := text.rest():
            yield rest

    def _result(self, prompt: str, context: Encoding, hypothesis: Hypothesis) -> GeneratedText:
        return GeneratedText(
            prompt,
            self.continuation(context.ids, hypothesis.tokens),
            hypothesis.score,
            self.tokenizer.unknown_pieces(context),
            len(hypothesis.tokens),
        )

    def continuation(self, prompt: Sequence[int], new_tokens: Sequence[int]) -> str:
        """Return the text of new tokens after a prompt."""
        # Decoded with the prompt: the text of a subword, e.g. its leading space, can depend on its context.
        return self.tokenizer.decode([*prompt, *new_tokens]).removeprefix(self.tokenizer.decode(prompt))

    def _decode(
        self, contexts: Sequence[Encoding], config: GenerationConfig, batch_size: int | None, row_ids: Sequence[int]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield (index, hypotheses) of each context."""
        size = inference_batch_size(batch_size)
        if self.engine is not None:
            requests = [self._request(*row, config) for row in zip(contexts, row_ids, strict=True)]
            yield from self.engine.decode(
                requests, self.decoding_tokens, config, batch_size=batch_size, speculative=self._speculative
            )
            return
        for rows in self._batches(contexts, config, size):
            batch = [contexts[row] for row in rows]
            constraints = self._constraints(batch, config)
            with self.simple_search():
                ids = [row_ids[row] for row in rows]
                hypotheses = generate(self.model, self._state(batch), constraints, config, row_ids=ids)
            yield from zip(rows, hypotheses, strict=True)

    def stream_tokens(self, context: Encoding, config: GenerationConfig) -> Iterator[int]:
        """Yield the ids of new tokens as they are generated."""
        if self.engine is not None:
            return self.engine.stream(
                self._request(context, 0, config), self.decoding_tokens, config, speculative=self._speculative
            )
        assert config.sampling is not None
        return stream(self.model, self._state([context]), self._constraints([context], config), config.sampling)

    def _request(self, context: Encoding, row_id: int, config: GenerationConfig) -> Request:
        assert config.max_new_tokens is not None
        return Request(context.ids, config.max_new_tokens, row_id=row_id)

    @property
    def decoding_tokens(self) -> Tokens:
        """The end token, and those that are never generated."""
        return Tokens(self.end, self.suppressed, len(self.tokenizer))

    def _batches(
        self, contexts: Sequence[Encoding], config: GenerationConfig, batch_size: BatchSize
    ) -> Iterator[list[int]]:
        """Yield the indices of prompts in batches of equal length, which need no padding."""
        by_length: dict[int, list[int]] = {}
        for index, context in enumerate(contexts):
            by_length.setdefault(len(context), []).append(index)
        for length, indices in by_length.items():
            longest = (length + (config.max_new_tokens or 0)) * config.num_return_sequences
            for rows in batch_by_length([longest] * len(indices), batch_size):
                yield [indices[row] for row in rows]

    @torch.inference_mode()
    def _state(self, contexts: Sequence[Encoding]) -> Any:
        """State after all tokens but the last of contexts of equal length."""
        state = self.model.init_state(len(contexts))
        if len(contexts[0]) == 1:
            return state
        tokens = torch.tensor([context.ids[:-1] for context in contexts], device=self.model.device)
        return self.model.forward_from(tokens, state)[1]

    def _constraints(self, contexts: Sequence[Encoding], config: GenerationConfig) -> DecodingConstraints:
        assert config.max_new_tokens is not None
        return DecodingConstraints(
            batch=len(contexts),
            begin=[context.ids[-1] for context in contexts],
            end=self.end,
            max_new_tokens=config.max_new_tokens,
            suppress_tokens=self.suppressed,
            vocab_size=len(self.tokenizer),
        )

    def check(self, prompts: Sequence[str], max_new_tokens: int = 100, first: int = 1) -> None:
        """Raise for the first prompt that is empty or too long. Prompts are numbered from `first`."""
        self.encode(prompts, max_new_tokens, first)

    def unknown_tokens(self, prompt: str) -> tuple[str, ...]:
        """Return the characters or words of a prompt that are not in the vocabulary."""
        (context,) = self.tokenizer.encode_with_offsets([prompt], add_special_tokens=True)
        return self.tokenizer.unknown_pieces(context)

    def encode(self, prompts: Sequence[str], max_new_tokens: int, first: int = 1) -> list[Encoding]:
        """Tokenize prompts, or raise an error that names the first one that is empty or too long."""
        contexts = self.tokenizer.encode_with_offsets(prompts, add_special_tokens=True)
        limit = self.model.max_length
        for number, context in enumerate(contexts, start=first):
            if not context.ids:
                raise InputError(
                    f"prompt {number} is empty: a language model needs at least one token of context", field="input"
                )
            if limit is not None and len(context) > limit:
                raise InputTooLongError(
                    f"prompt {number} has {len(context)} tokens, more than the model's context of {limit}",
                    field="input",
                )
            if limit is not None and len(context) + max_new_tokens - 1 > limit:
                most = limit + 1 - len(context)
                raise InputError(
                    f"prompt {number} has {len(context)} token(s) and the model a context of {limit}: "
                    f"max_new_tokens = {max_new_tokens} must be at most {most}; lower it or shorten the prompt"
                )
        return contexts

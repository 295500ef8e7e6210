"""Dialogue tasks: generate the next turn, as sequence-to-sequence learning or with one language model.

A response y is a turn of a dialogue other than the first, and its history x the turns before it, within limits:

    dialogue       p(y | x)             an encoder-decoder on pairs of history and response
    dialogue_lm    p(x_1, ..., x_n)     a language model of whole dialogues, packed into rows

Both are validated on p(y | x) with the same responses, histories and tokens, so their perplexities are comparable.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from qkv.config import Config, Count, Size, require
from qkv.datasets.batching import IGNORE, EncodedPair
from qkv.datasets.columns import DIALOGUE, Column
from qkv.datasets.dataset import Dataset, DialogueDataset
from qkv.datasets.examples.dialogue import Dialogue
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.metrics import Metric
from qkv.metrics.dialogue_metrics import DISTINCT_SIGNATURE, distinct
from qkv.models.gpt2 import GPT2
from qkv.nn.losses import token_cross_entropy
from qkv.pipelines.chat_bot import MIN_HISTORY_TOKENS, ChatBot
from qkv.pipelines.inputs.text_inputs import Example, iter_batches
from qkv.pipelines.inputs.tree_inputs import reads_trees
from qkv.pipelines.translator import GREEDY
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.task import LOSS, Sample, Task, perplexity
from qkv.tasks.base.train_config import TrainConfig
from qkv.tasks.packed_lm import Document, PackedLMConfig, PackedLMTask
from qkv.tasks.translation import EncodedPairs, TranslationConfig, TranslationTask
from qkv.tokenizers.dialogue import HISTORY_TOKENS, HISTORY_TURNS, history_start, truncate_turn
from qkv.tokenizers.trained import PAD

DISTINCT = {"distinct_1": 1, "distinct_2": 2}  # metric and length of its n-grams


class HistoryConfig(Config):
    """Limits of histories and responses."""

    history_turns: Count = HISTORY_TURNS  # most turns before a response that the model is given
    history_tokens: Size = HISTORY_TOKENS  # most tokens of these turns; earlier turns are dropped
    response_tokens: Size = 128  # most tokens of a response, </s> counted; longer responses are skipped


class ResponseTask(Task):
    """What the tasks of dialogue share: responses with their histories, and the metrics of responses."""

    metrics: ClassVar = {
        "loss": LOSS,  # nats per token of the responses, </s> counted
        "perplexity": Metric("perplexity", higher_is_better=False),  # exp(loss)
    }
    test_metrics: ClassVar = {
        "distinct_1": Metric("distinct-1", percent=True),
        "distinct_2": Metric("distinct-2", percent=True),
    }
    cli_command = "chat"
    searches = True
    datasets: ClassVar[tuple[type[Dataset[Any]], ...]] = (DialogueDataset,)
    columns: ClassVar[tuple[Column, ...]] = DIALOGUE
    evaluation_unit = "responses"
    evaluates_train = False
    mean_loss: Callable[[Any, Sequence[EncodedPair]], float]  # cross-entropy of responses in nats per token

    @classmethod
    def accepts_tokenizer(cls, name: str) -> bool:
        return name == "dialogue"

    def encode_responses(self, dialogues: Sequence[Dialogue], name: str) -> EncodedPairs:
        """Encode all responses with their histories, and note how many are too long."""
        turns = [*dict.fromkeys(turn for dialogue in dialogues for turn in dialogue.turns)]
        ids = dict(zip(turns, self.tokenizer.target.encode(turns), strict=True))
        pairs, tokens, skipped = [], [], 0
        for dialogue in dialogues:
            for number, response in enumerate(dialogue.turns[1:], start=1):
                if len(ids[response]) >= self.options.response_tokens:
                    skipped += 1
                    continue
                history = self._history(dialogue.turns[:number], ids)
                encoded = [ids[turn] if turn in ids else self.tokenizer.target.encode(turn) for turn in history]
                source = self.tokenizer.source.join_turns(encoded, add_special_tokens=True)
                pairs.append(Pair("\n".join(history), response))
                tokens.append(EncodedPair(array("i", source), array("i", ids[response])))
        if dialogues and not pairs:
            raise InputError(f"every {name} response has task.response_tokens = {self.options.response_tokens} or more")
        if skipped:
            self.notes += (
                f"skipped {skipped} {name} response(s) longer than task.response_tokens = "
                f"{self.options.response_tokens}",
            )
        return EncodedPairs(pairs, tokens)

    def _history(self, turns: Sequence[str], ids: dict[str, list[int]]) -> Sequence[str]:
        """Return the last turns within the limits; of a last turn that is too long, its end."""
        most_turns, most_tokens = self.options.history_turns, self.options.history_tokens
        recent = turns[-most_turns:]
        history = recent[history_start([len(ids[turn]) for turn in recent], most_turns, most_tokens) :]
        return history if len(history) > 1 else [truncate_turn(self.tokenizer, history[0], most_tokens)]

    def validate(self, model: Any) -> dict[str, float]:
        """Loss and perplexity of the validation responses."""
        loss = self.mean_loss(model, self.valid.tokens)
        return {"loss": loss, "perplexity": perplexity(loss)}

    def samples(self, model: Any, count: int) -> list[Sample]:
        pairs = self.valid.pairs[:count]
        texts = self._respond(model, pairs, GREEDY, use_engine=False)
        return [Sample(pair.source, text, pair.target) for pair, text in zip(pairs, texts, strict=True)]

    def _respond(
        self,
        model: Any,
        pairs: Sequence[Pair],
        search: GenerationConfig,
        progress: Callable[[int], None] = lambda done: None,
        *,
        use_engine: bool = True,
    ) -> list[str]:
        """Return the responses of a model to the sources of pairs."""
        bot = ChatBot(model, self.tokenizer, use_engine=use_engine)
        texts: dict[int, str] = {}
        search = search.replace(max_new_tokens=max(1, self.options.response_tokens - 1))
        for index, reply in bot.stream([pair.source for pair in pairs], search):
            texts[index] = reply.text
            progress(len(texts))
        return [texts[index] for index in range(len(pairs))]

    def evaluate(
        self,
        model: Any,
        data: Any,
        split: str,
        search: GenerationConfig = GREEDY,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Evaluation:
        """Perplexity of the responses of a split, and the diversity of those that the model generates."""
        dialogues = data.splits[split]
        responses = self.encode_responses(dialogues, split)
        if not responses.pairs:
            raise InputError(f"{split}: there are no responses to evaluate on")
        loss = self.mean_loss(model, responses.tokens)
        # The progress bar counts dialogues.
        texts = self._respond(
            model, responses.pairs, search, lambda done: progress(done * len(dialogues) // len(responses))
        )
        tokens = sum(len(pair.target) + 1 for pair in responses.tokens)
        return Evaluation(
            len(responses),
            self.evaluation_unit,
            {
                "loss": loss,
                "perplexity": perplexity(loss),
                **{name: distinct(texts, n) for name, n in DISTINCT.items()},
            },
            {
                "perplexity": f"tokens:{tokens:,} of a vocabulary of {len(self.tokenizer):,}, </s> counted",
                **dict.fromkeys(DISTINCT, DISTINCT_SIGNATURE),
            },
            outputs=tuple(texts),
            skipped=sum(len(dialogue.turns) - 1 for dialogue in dialogues) - len(responses),
        )

    def notes_on(self, data: Any, split: str) -> tuple[str, ...]:
        return ()


class DialogueConfig(TranslationConfig, HistoryConfig):
    """Options of the task."""


@register("task", "dialogue")
class DialogueTask(ResponseTask, TranslationTask):
    """Cross-entropy of the response, given its history."""

    title = "dialogue"
    config_class = DialogueConfig

    @classmethod
    def check_recipe(cls, options: Any, data: Any, model: Any) -> None:
        for key in ("bpe_dropout", "text_noise"):
            require(not getattr(options, key), f"task.{key} is not supported for dialogues: remove it")
        require(not reads_trees(model), "a dialogue has no dependency trees: choose another model.position")
        _check_limits(options, max(options.history_tokens, options.response_tokens), model)

    def setup(self, data: Any) -> None:
        super().setup(data)
        # A captured step would pad the responses to the width of the histories, about four times their length.
        self.capturable = False

    def _fitting(self, pairs: list[Any], name: str) -> EncodedPairs:
        return self.encode_responses(pairs, name)

    def describe(self) -> str:
        return f"{len(self.train):,} responses"


class DialogueLMConfig(PackedLMConfig, HistoryConfig):
    """Options of the task; the limits of histories and responses apply to validation, not to training."""


@register("task", "dialogue_lm")
class DialogueLMTask(ResponseTask, PackedLMTask):
    """Language modeling of whole dialogues, with a token for the speaker before each turn."""

    title = "dialogue as language modeling"
    config_class = DialogueLMConfig

    @classmethod
    def check_recipe(cls, options: Any, data: Any, model: Any) -> None:
        _check_limits(options, options.history_tokens + options.response_tokens, model)

    def setup(self, data: Any) -> None:
        super().setup(data)
        valid, size = self.encode_responses(data.splits["valid"], "validation"), self.train_config.valid_size
        self.valid = EncodedPairs(valid.pairs[:size], valid.tokens[:size])

    @classmethod
    def for_evaluation(cls, data: Any, model: Any, options: Any, train: TrainConfig, seed: int) -> Task:
        unused = {split: [Dialogue(("Hello.", "Hello."))] for split in ("train", "valid")}  # `evaluate` gets its data
        return cls(replace(data, splits=unused), model.tokenizer, model.config, options, train, seed)

    def encode(self, texts: Sequence[str]) -> list[Document]:
        """Token ids of each dialogue; every turn has an end token."""
        return [array("i", ids) for ids in self.tokenizer.source.encode(texts)]

    @torch.inference_mode()
    def mean_loss(self, model: GPT2, pairs: Sequence[EncodedPair]) -> float:
        """Mean cross-entropy of the responses in nats, </s> counted; the tokens of the histories do not count."""
        end = self.tokenizer.target.special_tokens.end
        examples = [
            Example([*pair.source, *pair.target], [IGNORE] * (len(pair.source) - 1) + [*pair.target, end])
            for pair in pairs
        ]
        total, tokens = 0.0, 0
        for _, batch in iter_batches(examples, self.train_config.batching, PAD):
            batch = batch.to(model.device)
            total += token_cross_entropy(model(batch.token_ids), batch.targets, IGNORE).item()
            tokens += batch.tokens
        return total / tokens


def _check_limits(options: HistoryConfig, tokens: int, model: Any) -> None:
    require(
        options.history_tokens >= MIN_HISTORY_TOKENS,
        f"task.history_tokens = {options.history_tokens} must be at least {MIN_HISTORY_TOKENS}",
    )
    require(
        tokens <= model.max_length,
        f"task.history_tokens = {options.history_tokens} and task.response_tokens = {options.response_tokens} need "
        f"model.max_length of at least {tokens}, not {model.max_length}",
    )

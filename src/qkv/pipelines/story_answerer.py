"""Questions about stories: the answer of a memory network, and the sentences that each hop attends to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from qkv.attention import watch
from qkv.config import require
from qkv.datasets.examples.stories import StoryQuestion
from qkv.datasets.tensor_batch import NamedTensors
from qkv.errors import InputError
from qkv.models.memory.memory_network import PADDING, MemoryNetwork
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.pipeline import Pipeline, one_or_many
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.sentences import split_sentences
from qkv.types import Float, Tensor

IGNORE = -1  # target of an answer that is not among the model's
FINAL_PUNCTUATION = " .?!"


@dataclass(frozen=True)
class EncodedStory:
    """Word ids of the sentences and the question, and the index of the answer."""

    sentences: tuple[list[int], ...]
    question: list[int]
    target: int = IGNORE


class StoryEncoder:
    """Encodes questions about stories; only the latest `max_memories` sentences are kept."""

    def __init__(self, tokenizer: Tokenizer, max_memories: int) -> None:
        self.tokenizer = tokenizer
        self.max_memories = max_memories

    def encode(self, questions: Sequence[StoryQuestion], targets: Sequence[int]) -> list[EncodedStory]:
        """Encode questions; final punctuation is left out, and each distinct sentence is tokenized once."""
        texts = list(dict.fromkeys(text for one in questions for text in (*one.sentences, one.question)))
        stripped = [text.rstrip(FINAL_PUNCTUATION) or text for text in texts]
        unk = self.tokenizer.special_tokens.unk or 1
        rows = ([token or unk for token in ids] or [unk] for ids in self.tokenizer.encode(stripped))
        ids_of = dict(zip(texts, rows, strict=True))
        return [
            EncodedStory(
                tuple(ids_of[text] for text in one.sentences[-self.max_memories :]), ids_of[one.question], target
            )
            for one, target in zip(questions, targets, strict=True)
        ]


def collate_stories(stories: Sequence[EncodedStory]) -> NamedTensors:
    """Pad stories into a batch."""
    words = max((len(ids) for story in stories for ids in story.sentences), default=1)
    count = max(1, *(len(story.sentences) for story in stories))
    empty = [[PADDING] * words]
    padded = [_padded(story.sentences, words) + empty * (count - len(story.sentences)) for story in stories]
    questions = [story.question for story in stories]
    return NamedTensors(
        {
            "story": torch.tensor(padded),
            "question": torch.tensor(_padded(questions, max(map(len, questions)))),
            "lengths": torch.tensor([len(story.sentences) for story in stories]),
            "targets": torch.tensor([story.target for story in stories]),
        }
    )


def _padded(rows: Sequence[list[int]], width: int) -> list[list[int]]:
    return [[*row, *[PADDING] * (width - len(row))] for row in rows]


def answer_logits(model: MemoryNetwork, batch: NamedTensors) -> Float[Tensor, "batch labels"]:
    """Logits of the answers of a batch."""
    logits: Tensor = model(batch["story"], batch["question"], batch["lengths"])
    return logits


@dataclass(frozen=True)
class StoryAnswer(Answer):
    """The answer to a question about a story; `attention` has one map, with a row for each hop."""

    question: str = ""
    sentences: tuple[str, ...] = ()  # those that the model can attend to
    probabilities: dict[str, float] = field(default_factory=dict)  # of all answers, most probable first


class StoryAnswerer(Pipeline):
    """A memory network: `StoryAnswerer("runs/babi-memory-0")("Where is Mary?", "Mary went home. John left.").text`."""

    task_description: ClassVar = "questions about stories"
    model_class: ClassVar = MemoryNetwork
    model: MemoryNetwork

    @one_or_many
    def __call__(self, questions: Sequence[str], story: str | Sequence[str]) -> list[StoryAnswer]:
        """Answer one question about a story, or several about one story or a story each.

        A story is a text, split into sentences at full stops and line breaks; the latest `max_memories` are kept.
        """
        stories = [story] * len(questions) if isinstance(story, str) else story
        require(
            len(stories) == len(questions), f"{len(questions)} question(s) but {len(stories)} stories: pass one each"
        )
        pairs = [
            StoryQuestion(tuple(split_sentences(text)), question.strip())
            for question, text in zip(questions, stories, strict=True)
        ]
        for number, pair in enumerate(pairs, start=1):
            if not pair.question or not pair.sentences:
                raise InputError(f"input {number}: the {'story' if pair.question else 'question'} is empty")
        return [self.answer(pair) for pair in pairs]

    @torch.inference_mode()
    def answer(self, question: StoryQuestion) -> StoryAnswer:
        """Answer a question about a story that is split into sentences."""
        sentences = question.sentences[-self.model.config.max_memories :]
        encoder = StoryEncoder(self.tokenizer, self.model.config.max_memories)
        (encoded,) = encoder.encode([question], [IGNORE])
        with watch(self.model) as records:
            logits = answer_logits(self.model, collate_stories([encoded]).to(self.model.device))
        weights = torch.cat([records[name].weights[0, :, 0] for name in records]).float().cpu().numpy()
        hops = tuple(f"hop {number}" for number in range(1, len(weights) + 1))
        log_p = logits[0].float().log_softmax(dim=-1)
        ranked = sorted(zip(self.model.labels, log_p.exp().tolist(), strict=True), key=lambda pair: -pair[1])
        return StoryAnswer(
            source=question.text,
            text=ranked[0][0],
            score=float(log_p.max()),
            maps=(AttentionMap("hops", hops, sentences, weights[None, :, : len(sentences)]),),
            unknown=self._unknown_words(question),
            question=question.question,
            sentences=sentences,
            probabilities=dict(ranked),
        )

    def _unknown_words(self, question: StoryQuestion) -> tuple[str, ...]:
        """Return the words that are not in the vocabulary."""
        text, unk = question.text, self.tokenizer.special_tokens.unk
        (encoding,) = self.tokenizer.encode_with_offsets([text])
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return tuple(dict.fromkeys(text[begin:end].strip() for token, (begin, end) in pairs if token == unk))

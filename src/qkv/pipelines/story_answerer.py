"""Questions about stories: the answer of a memory network, and the sentences that each hop attends to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.attention import watch
from qkv.config import require
from qkv.datasets.examples.stories import StoryQuestion
from qkv.datasets.tensor_batch import NamedTensors
from qkv.errors import InputError
from qkv.models.memory.memory_network import PADDING, MemoryNetwork
from qkv.pipelines.inputs.text_inputs import IGNORE
from qkv.pipelines.output import Answer, AttentionMap, Candidate, Prediction
from qkv.pipelines.pipeline import Pipeline, one_or_many
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.sentences import split_sentences
from qkv.types import Float, Int, Tensor

FINAL_PUNCTUATION = " .?!"


@dataclass(frozen=True)
class EncodedStory:
    """Rows of the sentences and of the question in the table of a `StoryEncoder`, and the index of the answer."""

    sentences: list[int]
    question: int
    target: int = IGNORE


class StoryEncoder:
    """Encodes questions about stories; only the latest `max_memories` sentences are kept.

    Each distinct sentence is tokenized once, without its final punctuation, and is a row of a table. Row 0 is padding.
    """

    def __init__(self, tokenizer: Tokenizer, max_memories: int) -> None:
        self.tokenizer = tokenizer
        self.max_memories = max_memories
        self.rows: dict[str, int] = {}
        self.words: list[list[int]] = [[]]
        self.table = torch.zeros(1, 0, dtype=torch.long)

    def encode(self, questions: Sequence[StoryQuestion], targets: Sequence[int]) -> list[EncodedStory]:
        """Encode questions with the indices of their answers."""
        self._add(text for one in questions for text in (*one.sentences, one.question))
        rows = self.rows
        return [
            EncodedStory([rows[text] for text in one.sentences[-self.max_memories :]], rows[one.question], target)
            for one, target in zip(questions, targets, strict=True)
        ]

    def _add(self, texts: Iterable[str]) -> None:
        """Add the sentences that are not in the table."""
        new = [text for text in dict.fromkeys(texts) if text not in self.rows]
        unk = self.tokenizer.special_tokens.unk or 1  # "<pad>" in a text is not padding
        encoded = self.tokenizer.encode([text.rstrip(FINAL_PUNCTUATION) or text for text in new])
        self.rows |= {text: row for row, text in enumerate(new, start=len(self.words))}
        self.words += [[token or unk for token in ids] or [unk] for ids in encoded]
        width = max(map(len, self.words))
        self.table = torch.tensor([[*ids, *[PADDING] * (width - len(ids))] for ids in self.words])

    def collate(self, stories: Sequence[EncodedStory]) -> NamedTensors:
        """Pad stories into a batch."""
        count = max(1, *(len(story.sentences) for story in stories))
        rows = torch.tensor([[*story.sentences, *[0] * (count - len(story.sentences))] for story in stories])
        return NamedTensors(
            {
                "story": _trimmed(self.table[rows]),
                "question": _trimmed(self.table[[story.question for story in stories]]),
                "lengths": torch.tensor([len(story.sentences) for story in stories]),
                "targets": torch.tensor([story.target for story in stories]),
            }
        )


def _trimmed(words: Int[Tensor, "*batch words"]) -> Int[Tensor, "*batch words"]:
    """Return the words without the columns that are padding in all rows; at least one is kept."""
    longest = int((words != PADDING).sum(dim=-1).max())
    return words[..., : max(1, longest)]


def answer_logits(model: MemoryNetwork, batch: NamedTensors) -> Float[Tensor, "batch labels"]:
    """Logits of the answers of a batch."""
    logits: Tensor = model(batch["story"], batch["question"], batch["lengths"])
    return logits


@dataclass(frozen=True, repr=False)
class StoryAnswer(Answer):
    """The answer to a question about a story; `attention` has one map, with a row for each hop."""

    question: str = ""
    sentences: tuple[str, ...] = ()  # those that the model can attend to

    @property
    def probabilities(self) -> dict[str, float]:
        """Probabilities of all answers, most probable first."""
        return dict(self.predictions[0].candidates)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer and its attention as plain data, as `qkv answer --json` prints them."""
        return {
            "question": self.question,
            "answer": self.text,
            "candidates": [
                {"text": answer, "probability": round(probability, 6)}
                for answer, probability in self.probabilities.items()
            ],
            "sentences": list(self.sentences),
            "attention": self.attention[0].average.round(6).tolist(),
        }

    def table_row(self) -> tuple[str, str, str]:
        return self.question, self.text, f"{self.probabilities[self.text]:.1%}"


class StoryAnswerer(Pipeline):
    """A memory network: `StoryAnswerer("runs/babi-memory-0")("Where is Mary?", "Mary went home. John left.").text`."""

    task_description: ClassVar = "questions about stories"
    model_class: ClassVar = MemoryNetwork
    model: MemoryNetwork

    @one_or_many
    def __call__(self, questions: Sequence[str], story: str | Sequence[str]) -> list[StoryAnswer]:
        """Answer one question about a story, or several about one story or a story each.

        Args:
            questions: A question, or several.
            story: A text, or a text for each question. It is split into sentences at full stops and line breaks, of
                which the latest `max_memories` of the model's config are kept.

        Returns:
            One `StoryAnswer` for each question, with `text`, `probabilities` and `attention`.
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
                what = "story" if pair.question else "question"
                raise InputError(f"input {number}: the {what} is empty", field=what)
        return [self.answer(pair) for pair in pairs]

    @torch.inference_mode()
    def answer(self, question: StoryQuestion) -> StoryAnswer:
        """Answer a question about a story that is split into sentences."""
        sentences = question.sentences[-self.model.config.max_memories :]
        encoder = StoryEncoder(self.tokenizer, self.model.config.max_memories)
        (encoded,) = encoder.encode([question], [IGNORE])
        with watch(self.model) as records:
            logits = answer_logits(self.model, encoder.collate([encoded]).to(self.model.device))
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
            predictions=(Prediction("", tuple(Candidate(*pair) for pair in ranked)),),
        )

    def _unknown_words(self, question: StoryQuestion) -> tuple[str, ...]:
        """Return the words that are not in the vocabulary."""
        text, unk = question.text, self.tokenizer.special_tokens.unk
        (encoding,) = self.tokenizer.encode_with_offsets([text])
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return tuple(dict.fromkeys(text[begin:end].strip() for token, (begin, end) in pairs if token == unk))

"""Windows of a question and a text for BERT, and the answer spans predicted from them.

    [CLS] question [SEP] text [SEP]             a long text is split into overlapping windows
    p(b, e) = p_begin(b) p_end(e),   b <= e     softmax over the window's tokens of the text, and [CLS]

p(CLS, CLS) is the probability that the window has no answer (Devlin et al. 2019, section 4.3).
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.nn import functional as F

from qkv.config import require
from qkv.datasets.batching import BatchSize
from qkv.datasets.examples.squad import Passage, Question
from qkv.datasets.tensor_batch import TensorBatch
from qkv.models.bert import Bert
from qkv.pipelines.inputs.text_inputs import IGNORE, ExampleEncoder, batches_of_one_width
from qkv.tokenizers import Tokenizer
from qkv.types import Bool, Float, Int, Tensor

MAX_ANSWER_TOKENS = 30  # tokens
CLS = 0  # position of the token that represents "no answer"


@dataclass(frozen=True)
class QuestionWindow:
    """One row of a batch: a question and a part of its text."""

    question: int  # index of its question
    ids: list[int]
    first: int  # position of the first token of the text
    passages: list[Passage]  # character span of each token in the whole text
    begin: int = CLS  # positions of the first and the last token of the true answer
    end: int = CLS

    @property
    def candidates(self) -> list[bool]:
        """For each token, whether an answer can begin or end there."""
        is_text = [passage.begin < passage.end for passage in self.passages]
        return [True, *[False] * (self.first - 1), *is_text, *[False] * (len(self.ids) - self.first - len(is_text))]


def tokenize_with_offsets(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[list[int], list[Passage]]]:
    """Token ids of texts, and the character span of each token; those of whitespace are empty."""
    return [
        (encoding.ids, [_trimmed(text, begin, end) for begin, end in encoding.offsets])
        for text, encoding in zip(texts, tokenizer.encode_with_offsets(texts), strict=True)
    ]


def _trimmed(text: str, begin: int, end: int) -> Passage:
    """A span without surrounding whitespace, extended over combining characters at its end."""
    while end < len(text) and begin < end and unicodedata.combining(text[end]):
        end += 1
    inside = text[begin:end]
    begin += len(inside) - len(inside.lstrip())
    return Passage(begin, max(begin, end - len(inside) + len(inside.rstrip())))


def make_windows(
    encoder: ExampleEncoder, questions: Sequence[Question], max_length: int, stride: int | None = None
) -> list[QuestionWindow]:
    """Windows of at most `max_length` tokens for each question and its text.

    Questions are truncated to half of the length. Windows start `stride` tokens apart, by default half of the text they
    hold. The true answer is the first reference; a window that does not contain all of it has no answer.
    """
    max_question = max_question_tokens(max_length)
    _, end = encoder.special_tokens
    texts = list(dict.fromkeys(question.text for question in questions))  # many questions share a text
    tokenized = dict(zip(texts, tokenize_with_offsets(encoder.tokenizer, texts), strict=True))
    encoded_questions = encoder.encode([question.question for question in questions])
    windows = []
    for number, (question, question_ids) in enumerate(zip(questions, encoded_questions, strict=True)):
        ids, passages = tokenized[question.text]
        prefix = encoder.add_special_tokens(question_ids[:max_question])
        first = len(prefix)
        max_text = max_length - first - 1
        step = min(stride or max(1, max_text // 2), max_text)
        answer = _token_span(question.answers[0], passages) if question.answers else None
        for start in range(0, max(1, len(ids) - max_text + step), step):
            stop = min(start + max_text, len(ids))
            window = QuestionWindow(number, [*prefix, *ids[start:stop], end], first, passages[start:stop])
            if answer is not None and start <= answer[0] and answer[1] < stop:
                window = replace(window, begin=first + answer[0] - start, end=first + answer[1] - start)
            windows.append(window)
    return windows


def max_question_tokens(max_length: int) -> int:
    """Maximum number of tokens of a question for a model with this `max_length`."""
    require(max_length >= 5, f"model.max_length = {max_length} is too short for a question and a text")
    return (max_length - 3) // 2


def _token_span(answer: Passage, passages: Sequence[Passage]) -> tuple[int, int] | None:
    """First and last token that overlap with an answer; None if the tokenizer dropped all of it."""
    overlapping = [
        index
        for index, passage in enumerate(passages)
        if passage.begin < passage.end and passage.begin < answer.end and answer.begin < passage.end
    ]
    return (overlapping[0], overlapping[-1]) if overlapping else None


@dataclass(frozen=True)
class WindowBatch(TensorBatch):
    """Windows of similar length, padded on the right; padding rows have ignored targets."""

    token_ids: Int[Tensor, "batch length"]
    segments: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    candidates: Bool[Tensor, "batch length"]
    targets: Int[Tensor, "batch 2"]  # positions of the first and the last token of the answer
    tokens: int  # number of windows

    def count_tokens(self) -> int:
        return int((self.targets[:, 0] != IGNORE).sum())


def collate(windows: Sequence[QuestionWindow], pad: int, rows: int = 0, width: int = 0) -> WindowBatch:
    """Collate windows into a batch of at least `rows` x `width`."""
    missing = max(0, rows - len(windows))
    width = max(width, *(len(window.ids) for window in windows))
    empty = QuestionWindow(0, [pad], 1, [], IGNORE, IGNORE)
    padded = [*windows, *[empty] * missing]
    return WindowBatch(
        torch.tensor([[*window.ids, *[pad] * (width - len(window.ids))] for window in padded]),
        torch.tensor([[*[0] * window.first, *[1] * (width - window.first)] for window in padded]),
        torch.tensor([len(window.ids) for window in padded]),
        torch.tensor([[*window.candidates, *[False] * (width - len(window.ids))] for window in padded]),
        torch.tensor([[window.begin, window.end] for window in padded]),
        len(windows),
    )


def log_probabilities(model: Bert, batch: WindowBatch) -> Float[Tensor, "batch 2 length"]:
    """log p_begin and log p_end of each position; -inf where no answer can begin or end."""
    segments = batch.segments.clamp(max=model.config.segments - 1)
    logits = model.logits(model(batch.token_ids, segments, batch.lengths))
    assert isinstance(logits, Tensor)
    scores = logits.float().transpose(1, 2).masked_fill(~batch.candidates[:, None], -torch.inf)
    return scores.log_softmax(dim=-1)


def mean_loss(log_p: Float[Tensor, "batch 2 length"], targets: Int[Tensor, "batch 2"]) -> Float[Tensor, ""]:
    """-(log p_begin + log p_end) / 2 of the true answer, averaged over the windows."""
    counted = (targets != IGNORE).sum().clamp(min=1)
    return F.nll_loss(log_p.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum") / counted


class ScoredPassage(NamedTuple):
    """A candidate answer span."""

    passage: Passage
    log_probability: float  # log p_begin + log p_end, the maximum over windows


@dataclass(frozen=True)
class SpanPredictions:
    """Predicted answers to one question."""

    best: list[ScoredPassage]  # most probable first
    no_answer: float  # log P(no answer), the minimum over windows
    loss: float  # sum over windows

    @property
    def answer(self) -> ScoredPassage | None:
        """The best span, or None if "no answer" is more probable."""
        return self.best[0] if self.best and self.best[0].log_probability >= self.no_answer else None


@torch.inference_mode()
def predict_spans(
    model: Bert,
    windows: Sequence[QuestionWindow],
    pad: int,
    batch_size: BatchSize,
    *,
    top_k: int = 1,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[SpanPredictions]:
    """The best spans for each question over all of its windows, in batches."""
    by_question: dict[int, list[tuple[QuestionWindow, Tensor]]] = {}
    lengths = [len(window.ids) for window in windows]
    for width, rows in batches_of_one_width(lengths, batch_size, model.config.max_length):
        batch = collate([windows[row] for row in rows], pad, width=width).to(model.device)
        for row, log_p in zip(rows, log_probabilities(model, batch).cpu(), strict=True):
            by_question.setdefault(windows[row].question, []).append((windows[row], log_p))
    return [_merge_windows(by_question[question], top_k, max_answer_tokens) for question in sorted(by_question)]


def _merge_windows(
    scored: Sequence[tuple[QuestionWindow, Tensor]], top_k: int, max_answer_tokens: int
) -> SpanPredictions:
    best: dict[Passage, float] = {}
    for window, log_p in scored:
        for passage, score in _best_spans(window, log_p, top_k, max_answer_tokens):
            best[passage] = max(score, best.get(passage, score))
    ranked = sorted(best.items(), key=lambda item: -item[1])[:top_k]
    no_answer = min(float(log_p[:, CLS].sum()) for _, log_p in scored)
    loss = -sum(float(log_p[0, window.begin] + log_p[1, window.end]) / 2 for window, log_p in scored)
    return SpanPredictions([ScoredPassage(*item) for item in ranked], no_answer, loss)


def _best_spans(
    window: QuestionWindow, log_p: Float[Tensor, "2 length"], top_k: int, max_tokens: int
) -> Iterator[ScoredPassage]:
    """The best spans of a window, each of at most `max_tokens` tokens."""
    tokens = len(window.passages)
    if tokens == 0:
        return
    begins, ends = log_p[:, window.first : window.first + tokens]
    max_tokens = min(max_tokens, tokens)
    # scores[b, k] of the span from token b to token b + k
    scores = begins[:, None] + F.pad(ends, (0, max_tokens - 1), value=-torch.inf).unfold(0, max_tokens, 1)
    values, cells = scores.flatten().topk(min(top_k, scores.numel()))
    for score, cell in zip(values.tolist(), cells.tolist(), strict=True):
        if score > -torch.inf:
            first, extra = divmod(cell, max_tokens)
            yield ScoredPassage(Passage(window.passages[first].begin, window.passages[first + extra].end), score)

"""A question and a text as a model reads them, and what it then says of where the answer stands.

    [CLS] question [SEP] text [SEP]             a text that is too long in several windows, which overlap
    p(b, e) = p_begin(b) p_end(e),   b <= e     both a softmax over the tokens of the text in the window, and [CLS]

p(CLS, CLS) is how probable it is that no answer stands in the window (Devlin et al. 2019, section 4.3).
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch.nn import functional as F

from qkv.config import require
from qkv.data.batching import batch_by_length
from qkv.data.questions import Passage, Question
from qkv.data.tensor_batch import TensorBatch
from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.models.bert import Bert
from qkv.tasks.pieces import IGNORE, Splitter
from qkv.types import Bool, Float, Int, Tensor

LONGEST_ANSWER = 30  # tokens
CLS = 0  # the place of the token that stands for no answer


class Placed(NamedTuple):
    """The tokens of a text, and where in it each stands; one that is but space stands nowhere (begin = end)."""

    ids: list[int]
    passages: list[Passage]


@dataclass(frozen=True)
class Window:
    """What is read in one row."""

    question: int  # the number of its question
    ids: list[int]
    first: int  # the place of the first token of the text
    passages: list[Passage]  # where in the whole text the tokens of this part stand
    begin: int = CLS  # the places of the first and the last token of the right answer
    end: int = CLS

    @property
    def candidates(self) -> list[bool]:
        """Of each token whether an answer may begin or end there."""
        of_text = [one.begin < one.end for one in self.passages]
        return [True, *[False] * (self.first - 1), *of_text, *[False] * (len(self.ids) - self.first - len(of_text))]


def placed(tokenizer: Vocabulary | PretrainedTokenizer, texts: Sequence[str]) -> list[Placed]:
    """Cut texts into tokens, and find each in its text again."""
    if isinstance(tokenizer, Vocabulary):
        cut = [tokenizer.encode(text) for text in texts]
        ends = [accumulate(map(len, tokens.pieces), initial=0) for tokens in cut]  # the pieces are the text
        found = [(tokens.ids, list(pairwise(places))) for tokens, places in zip(cut, ends, strict=True)]
    else:
        found = [(encoded.ids, encoded.offsets) for encoded in tokenizer.encode_batch(texts, specials=False)]
    return [
        Placed(ids, [_trimmed(text, begin, end) for begin, end in spans])
        for text, (ids, spans) in zip(texts, found, strict=True)
    ]


def _trimmed(text: str, begin: int, end: int) -> Passage:
    """A passage without the space around it, and with the accents on its last letter."""
    while end < len(text) and begin < end and unicodedata.combining(text[end]):
        end += 1
    inside = text[begin:end]
    begin += len(inside) - len(inside.lstrip())
    return Passage(begin, max(begin, end - len(inside) + len(inside.rstrip())))


def windows_of(
    splitter: Splitter, questions: Sequence[Question], longest: int, stride: int | None = None
) -> list[Window]:
    """What a model that can look at `longest` tokens reads of each question and its text.

    A question takes half of the room at most, and is cut off there. Each window begins `stride` tokens after the one
    before, half of what it holds of the text unless that is given. The right answer is the first that people gave; in
    a window that does not hold all of it there is none.
    """
    room = question_room(longest)
    _, end = splitter.edges
    texts = list(dict.fromkeys(one.text for one in questions))  # each of which many questions may be about
    read = dict(zip(texts, placed(splitter.tokenizer, texts), strict=True))
    asked = splitter.split([one.question for one in questions])
    found = []
    for number, (one, question) in enumerate(zip(questions, asked, strict=True)):
        ids, passages = read[one.text]
        before = splitter.between(question[:room])
        first = len(before)
        wide = longest - first - 1
        step = min(stride or max(1, wide // 2), wide)
        answer = _tokens_of(one.answers[0], passages) if one.answers else None
        for start in range(0, max(1, len(ids) - wide + step), step):
            stop = min(start + wide, len(ids))
            window = Window(number, [*before, *ids[start:stop], end], first, passages[start:stop])
            if answer is not None and start <= answer[0] and answer[1] < stop:
                window = replace(window, begin=first + answer[0] - start, end=first + answer[1] - start)
            found.append(window)
    return found


def question_room(longest: int) -> int:
    """How many tokens of a question a model reads that can look at `longest`."""
    require(longest >= 5, f"model.max_length = {longest} has no room for a question and a text between three marks")
    return (longest - 3) // 2


def _tokens_of(answer: Passage, passages: Sequence[Passage]) -> tuple[int, int] | None:
    """The first and the last token that an answer has a part in; None where the tokenizer has left nothing of it."""
    among = [
        number
        for number, one in enumerate(passages)
        if one.begin < one.end and one.begin < answer.end and answer.begin < one.end
    ]
    return (among[0], among[-1]) if among else None


@dataclass(frozen=True)
class WindowBatch(TensorBatch):
    """Some windows of like length, filled up on the right; a row that is no window has targets that do not count."""

    tokens_read: Int[Tensor, "batch length"]
    segments: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    candidates: Bool[Tensor, "batch length"]
    targets: Int[Tensor, "batch 2"]  # the places of the first and the last token of the answer
    tokens: int  # how many windows count


def batched(windows: Sequence[Window], pad: int, rows: int = 0, width: int = 0) -> WindowBatch:
    """Windows as one batch, of so many rows and places at least."""
    missing = max(0, rows - len(windows))
    width = max(width, *(len(one.ids) for one in windows))
    nothing = Window(0, [pad], 1, [], IGNORE, IGNORE)
    filled = [*windows, *[nothing] * missing]
    return WindowBatch(
        torch.tensor([[*one.ids, *[pad] * (width - len(one.ids))] for one in filled]),
        torch.tensor([[*[0] * one.first, *[1] * (width - one.first)] for one in filled]),
        torch.tensor([len(one.ids) for one in filled]),
        torch.tensor([[*one.candidates, *[False] * (width - len(one.ids))] for one in filled]),
        torch.tensor([[one.begin, one.end] for one in filled]),
        len(windows),
    )


def log_probabilities(model: Bert, batch: WindowBatch) -> Float[Tensor, "batch 2 length"]:
    """log p_begin and log p_end of each place; where no answer can begin or end, minus infinity."""
    segments = batch.segments.clamp(max=model.config.segments - 1)
    logits = model.logits(model(batch.tokens_read, segments, batch.lengths))
    assert isinstance(logits, Tensor)
    scores = logits.float().transpose(1, 2).masked_fill(~batch.candidates[:, None], -torch.inf)
    return scores.log_softmax(dim=-1)


def mean_loss(log_p: Float[Tensor, "batch 2 length"], targets: Int[Tensor, "batch 2"]) -> Float[Tensor, ""]:
    """-(log p_begin + log p_end) / 2 of the right answer, the mean over the windows that count."""
    counted = (targets != IGNORE).sum().clamp(min=1)
    return F.nll_loss(log_p.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum") / counted


class Found(NamedTuple):
    """A passage that may be the answer."""

    passage: Passage
    log_probability: float  # log p_begin + log p_end, in the window that is surest of it


@dataclass(frozen=True)
class Findings:
    """What was found in a text."""

    best: list[Found]  # the most probable first
    none: float  # log p that there is no answer: that of the window that doubts it most
    loss: float  # the sum over its windows

    @property
    def answer(self) -> Found | None:
        """The best passage, unless no answer is more probable."""
        return self.best[0] if self.best and self.best[0].log_probability >= self.none else None


@torch.inference_mode()
def find(
    model: Bert,
    windows: Sequence[Window],
    pad: int,
    budget: int,
    *,
    top: int = 1,
    longest: int = LONGEST_ANSWER,
) -> list[Findings]:
    """The best passages for each question, over all of its windows; these are read in batches of so many tokens."""
    found: dict[int, list[tuple[Window, Tensor]]] = {}
    for rows in batch_by_length([len(one.ids) for one in windows], budget):
        batch = batched([windows[row] for row in rows], pad).to(model.device)
        for row, log_p in zip(rows, log_probabilities(model, batch).cpu(), strict=True):
            found.setdefault(windows[row].question, []).append((windows[row], log_p))
    return [_findings(found[question], top, longest) for question in sorted(found)]


def _findings(read: Sequence[tuple[Window, Tensor]], top: int, longest: int) -> Findings:
    best: dict[Passage, float] = {}
    for window, log_p in read:
        for passage, score in _best_of(window, log_p, top, longest):
            best[passage] = max(score, best.get(passage, score))
    ranked = sorted(best.items(), key=lambda one: -one[1])[:top]
    none = min(float(log_p[:, CLS].sum()) for _, log_p in read)
    loss = -sum(float(log_p[0, window.begin] + log_p[1, window.end]) / 2 for window, log_p in read)
    return Findings([Found(*one) for one in ranked], none, loss)


def _best_of(window: Window, log_p: Float[Tensor, "2 length"], top: int, longest: int) -> Iterator[Found]:
    """The best passages of a window, none of them longer than so many tokens."""
    tokens = len(window.passages)
    if tokens == 0:
        return
    begins, ends = log_p[:, window.first : window.first + tokens]
    longest = min(longest, tokens)
    # scores[b, k] of the passage from token b to token b + k
    scores = begins[:, None] + F.pad(ends, (0, longest - 1), value=-torch.inf).unfold(0, longest, 1)
    values, cells = scores.flatten().topk(min(top, scores.numel()))
    for score, cell in zip(values.tolist(), cells.tolist(), strict=True):
        if score > -torch.inf:
            first, further = divmod(cell, longest)
            yield Found(Passage(window.passages[first].begin, window.passages[first + further].end), score)

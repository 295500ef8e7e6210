"""What a beam search keeps: the hypotheses of all beams, and the tree of their extensions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from qkv.datasets.examples.tagged import Tagged
from qkv.generation import GenerationConfig
from qkv.generation.beam import Candidates, beam_search
from qkv.pipelines.inputs.tree_inputs import tree_arguments
from qkv.pipelines.output import Answer
from qkv.pipelines.pipeline import one_or_many
from qkv.pipelines.translator import Source, Translator


class SearchNode(NamedTuple):
    """One of the extensions that a step of the search considered."""

    step: int  # number of tokens before this one
    parent: int  # index of the node that it extends; -1 for the first token
    token: str  # display text
    log_p: float  # of the sequence up to this token
    score: float | None  # of a finished hypothesis; None for one that goes on
    kept: bool  # whether it is extended in the next step


@dataclass(frozen=True, kw_only=True)
class SearchedAnswer(Answer):
    """The best hypothesis of a beam search, all hypotheses best first, and the nodes of its tree, parents first."""

    hypotheses: tuple[Answer, ...]
    leaves: tuple[int, ...]  # the last node of each hypothesis
    nodes: tuple[SearchNode, ...]


class BeamProbe(Translator):
    """A translator that records its beam search: `BeamProbe("runs/demo")("5 March 2026", num_beams=5).nodes`."""

    @one_or_many
    @torch.inference_mode()
    def __call__(  # type: ignore[override]
        self, texts: Sequence[str | Tagged], *, num_beams: int = 5, length_penalty: float = 1.0
    ) -> list[SearchedAnswer]:
        """Translate one text or several, and return the hypotheses and the tree of each search."""
        config = GenerationConfig(num_beams=num_beams, num_return_sequences=num_beams, length_penalty=length_penalty)
        return [self._search(source, config) for source in self.encode(dict(enumerate(texts, start=1)))]

    def _search(self, source: Source, config: GenerationConfig) -> SearchedAnswer:
        batch = self._batch([(source, ())])
        state = self.model.init_state(self.model.encode(batch.source, batch.source_lengths, **tree_arguments(batch)))
        target, tree = self.tokenizer.target, SearchTree(self.special_tokens.end, config)
        (hypotheses,) = beam_search(
            self.model, state, self._constraints([source], config, ""),
            num_beams=config.num_beams, length_penalty=config.length_penalty, observe=tree.add,
        )  # fmt: skip
        maps = self.attention([(source, hypothesis) for hypothesis in hypotheses])
        answers = [self.answer(source, *pair) for pair in zip(hypotheses, maps, strict=True)]
        best = answers[0]
        return SearchedAnswer(
            best.source, best.text, best.score, best.attention, best.unknown, best.new_tokens, best.special,
            hypotheses=tuple(answers),
            leaves=tuple(tree.leaf(hypothesis.tokens) for hypothesis in hypotheses),
            nodes=tuple(tree.nodes(target.piece)),
        )  # fmt: skip


class SearchTree:
    """Collects the nodes of the search of one input."""

    def __init__(self, end: int | None, config: GenerationConfig) -> None:
        self._end = end
        self._config = config
        self._nodes: list[tuple[int, int, int, float, float | None, bool]] = []  # as SearchNode, with token ids
        self._rows: list[int] = []  # the node of each running hypothesis
        self._step = 0

    def add(self, candidates: Candidates, kept: Candidates) -> None:
        """Add the candidates of a step, and the running hypotheses of the next step."""
        scores, rows, tokens = (values[0].tolist() for values in candidates)
        running = list(zip(kept.rows[0].tolist(), kept.tokens[0].tolist(), strict=True))
        indices: dict[tuple[int, int], int] = {}
        for rank, (log_p, row, token) in enumerate(zip(scores, rows, tokens, strict=True)):
            ended = token == self._end
            if log_p == -torch.inf or (ended and rank >= self._config.num_beams):
                continue  # forbidden, of a beam that is not in use yet, or not among the candidates that may end
            parent = self._rows[row] if self._rows else -1
            score = log_p / (self._step + 1) ** self._config.length_penalty if ended else None
            indices[row, token] = len(self._nodes)
            self._nodes.append((self._step, parent, token, log_p, score, not ended and (row, token) in running))
        self._rows = [indices.get(pair, -1) for pair in running]  # -1: a beam that is not in use, never extended
        self._step += 1

    def leaf(self, tokens: Sequence[int]) -> int:
        """Return the node at which a hypothesis ends."""
        for index, (step, _, token, _, score, _) in enumerate(self._nodes):
            if score is not None and step == len(tokens) and self._path(index) == (*tokens, token):
                return index
        return -1

    def _path(self, index: int) -> tuple[int, ...]:
        path: list[int] = []
        while index >= 0:
            path.append(self._nodes[index][2])
            index = self._nodes[index][1]
        return tuple(reversed(path))

    def nodes(self, piece: Callable[[int], str]) -> list[SearchNode]:
        """Return the nodes, with the display text of their tokens."""
        return [
            SearchNode(step, parent, piece(token), log_p, score, kept)
            for step, parent, token, log_p, score, kept in self._nodes
        ]

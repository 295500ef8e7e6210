"""End-to-end memory networks (Sukhbaatar, Szlam, Weston and Fergus 2015): answer a question about a story.

A story is a list of sentences x_1 .. x_n, oldest first, q is the question. Sentences and the question are encoded as
weighted sums of the embeddings of their words, and each hop attends to the sentences:

    encode(X; x) = sum_j l_j * X x_j,   l_jf = (1 - j / J) - (f / d)(1 - 2j / J)     word j of J, feature f of d
    u^1 = encode(B; q)
    m_i = encode(A^k; x_i) + T_A^k(n - i)                                            keys of hop k
    c_i = encode(C^k; x_i) + T_C^k(n - i)                                            values of hop k
    p   = softmax_i(u^k . m_i),   o^k = sum_i p_i c_i
    u^{k+1} = u^k + o^k                        adjacent tying:  A^{k+1} = C^k, T_A^{k+1} = T_C^k, B = A^1
    u^{k+1} = H u^k + o^k                      layer-wise tying: A^1 = A^2 = ..., C^1 = C^2 = ..., B is separate
    p(answer) = softmax(W u^{K+1})

* is the elementwise product. The temporal encoding T has a vector for each number of sentences between a memory and the
question. As a regularizer, a training story gets gaps in its numbering, as if empty memories were inserted at random
(`time_noise`). W is not tied to C^K: an answer may consist of several words, joined into one label.
"""

from typing import Literal

import torch
from pydantic import model_validator
from torch import nn
from torch.nn import functional as F

from qkv.attention import Attend, Padding, Sizes
from qkv.config import AlignTerm, Config, Count, Rate, ScoreTerm, Size, StringList, Term, require_names
from qkv.errors import ShapeError
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import Model, label_names
from qkv.nn.multi_head import BackendName, check_terms
from qkv.nn.pooling import full_lengths
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PADDING = 0  # padding id of words


class MemoryNetworkConfig(Config):
    """Sizes and terms of the model."""

    vocab_size: Size = 200  # number of words; set by the data
    labels: Size = 2  # number of answers; set by the data
    label_names: StringList = ()  # the answers; set by the data
    dim: Size = 50  # size of the embeddings, d
    hops: Count = 3  # number of hops, K
    max_memories: Size = 50  # maximum number of sentences; pipelines and tasks pass the latest ones
    tying: Literal["adjacent", "layerwise"] = "adjacent"  # which hops share their embeddings
    position_encoding: bool = True  # weight words by position; otherwise a sentence is a bag of words
    time_noise: Rate = 0.1  # probability of a gap after each sentence of a training story
    score: ScoreTerm = Term("score", "dot")  # score of the hops
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    dropout: Rate = 0.0  # dropout of u^{K+1}

    @model_validator(mode="after")
    def check(self) -> "MemoryNetworkConfig":
        require_names(self.label_names, self.labels)
        check_terms(self.sizes, score=self.score, align=self.align)
        return self

    @property
    def sizes(self) -> Sizes:
        """Sizes of the attention of a hop."""
        return Sizes(query=self.dim, key=self.dim, hidden=self.dim, max_keys=self.max_memories)


@register("model", "memory_network")
class MemoryNetwork(Model):
    """Hops of soft attention over the sentences of a story; under `qkv.watch`, the layers are hops.0, hops.1, ..."""

    config_class = MemoryNetworkConfig
    description = "memory network (Sukhbaatar et al. 2015): answers questions about stories in several hops"
    kind_description = "a memory network (for qkv answer, evaluate, view)"

    def __init__(self, config: MemoryNetworkConfig) -> None:
        super().__init__()
        self.config = config
        adjacent = config.tying == "adjacent"
        self.matrices = config.hops + 1 if adjacent else 3  # A^1, C^1 = A^2, ..., C^K; or A, C, B
        self.embed = nn.Embedding(config.vocab_size, self.matrices * config.dim)
        self.temporal = nn.Embedding(config.max_memories, self.matrices * config.dim)
        self.hops = nn.ModuleList(
            Attend(config.score.build(config.sizes), config.align.build(config.sizes), backend=config.backend, heads=1)
            for _ in range(config.hops)
        )
        self.state_proj = None if adjacent else nn.Linear(config.dim, config.dim, bias=False)  # H
        self.readout = nn.Linear(config.dim, config.labels, bias=False)  # W
        self.dropout = Dropout(config.dropout)
        for module in (self.embed, self.temporal, self.readout):
            nn.init.normal_(module.weight, std=0.1)

    def forward(
        self,
        story: Int[Tensor, "batch sentences words"],
        question: Int[Tensor, "batch question_words"],
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch labels"]:
        """Return the logits of the answers.

        Words with id 0 are padding. `lengths` are the numbers of sentences; if it is omitted, stories are assumed to be
        unpadded.
        """
        if story.ndim != 3 or question.ndim != 2 or len(story) != len(question):
            raise ShapeError(
                "expected a story [batch, sentences, words] and a question [batch, words], got "
                f"{list(story.shape)} and {list(question.shape)}"
            )
        if story.shape[1] > self.config.max_memories:
            raise ShapeError(f"{story.shape[1]} sentences exceed max_memories = {self.config.max_memories}")
        lengths = full_lengths(story) if lengths is None else lengths
        memories = self.encode(story.flatten(0, 1)).unflatten(0, story.shape[:2])
        memories = memories + self.temporal(self._ages(lengths, story.shape[1])).unflatten(-1, (self.matrices, -1))
        last = self.matrices - 1  # B of layer-wise tying
        u = self.encode(question)[:, 0 if self.state_proj is None else last, None, None]
        for number, attend in enumerate(self.hops):
            key = number if self.state_proj is None else 0
            m, c = (memories[:, None, :, matrix] for matrix in (key, key + 1))
            o = attend(u, m, c, Padding(lengths)).output
            u = o + (u if self.state_proj is None else self.state_proj(u))
        return self.readout(self.dropout(u[:, 0, 0]))

    def encode(self, tokens: Int[Tensor, "rows words"]) -> Float[Tensor, "rows matrices dim"]:
        """Return the encodings of sentences with each embedding matrix.

        l_jf = a_j + (f / d) b_j with a_j = 1 - j / J and b_j = 2j / J - 1, so that feature f of the encoding is that of
        sum_j a_j X x_j + (f / d) sum_j b_j X x_j, two sums of embeddings with scalar weights.
        """
        weight, valid = self.embed.weight, (tokens != PADDING).to(self.embed.weight.dtype)
        if not self.config.position_encoding:
            return F.embedding_bag(tokens, weight, mode="sum", per_sample_weights=valid).unflatten(
                -1, (-1, self.config.dim)
            )
        j = torch.arange(1, tokens.shape[1] + 1, device=tokens.device) / valid.sum(dim=1, keepdim=True).clamp(min=1)
        sums = (
            F.embedding_bag(tokens, weight, mode="sum", per_sample_weights=weights * valid)
            for weights in (1 - j, 2 * j - 1)
        )
        a, b = (bag.unflatten(-1, (self.matrices, self.config.dim)) for bag in sums)
        f = torch.arange(1, self.config.dim + 1, device=tokens.device, dtype=weight.dtype)
        return a + f / self.config.dim * b

    def _ages(self, lengths: Int[Tensor, "batch"], sentences: int) -> Int[Tensor, "batch sentences"]:
        """Return the number of sentences after each one, with random gaps in training."""
        numbers = torch.arange(sentences, device=lengths.device)
        ages = (lengths[:, None] - 1 - numbers).clamp(min=0)
        if self.training and self.config.time_noise:
            gaps = torch.rand(ages.shape, device=ages.device) < self.config.time_noise
            ages = ages + (gaps & (numbers < lengths[:, None])).flip(1).cumsum(dim=1).flip(1)
        return ages.clamp(max=self.config.max_memories - 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The answers, or LABEL_0, LABEL_1, ... if unnamed."""
        return label_names(self.config.label_names, self.config.labels)

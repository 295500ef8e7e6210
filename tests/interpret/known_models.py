"""Models whose predictions have a known explanation."""

import math

import torch
from torch import nn

from qkv.config import Config
from qkv.interpret.explainable import Explainable
from qkv.interpret.explainable_texts import TextClassification
from qkv.nn.interfaces import TextEncoder
from qkv.nn.pooling import AttentionPooling, full_lengths
from qkv.pipelines.classifier import Classifier
from qkv.tokenizers import WordTokenizer

EVIDENCE, SALIENCE = 0, 1  # features of a word


class BagConfig(Config):
    vocab_size: int = 8
    head: str = "classifier"
    labels: int = 2
    label_names: tuple[str, ...] = ("bad", "good")
    max_length: int = 32


class BagOfWords(TextEncoder):
    """p(label) from sum_i a_i x_i: x_i has the evidence of a word for the label, and its salience, which sets a_i."""

    config_class = BagConfig

    def __init__(self, words, strength: float = 8.0) -> None:
        super().__init__()
        self.tokenizer = WordTokenizer.train([" ".join(words)])
        self.config = BagConfig(vocab_size=len(self.tokenizer))
        self.embed = nn.Embedding(len(self.tokenizer), 2)
        self.pool = AttentionPooling(2, 1)
        self.label = nn.Linear(2, 2)
        with torch.no_grad():
            self.embed.weight.zero_()
            for word, features in words.items():
                self.embed.weight[self.tokenizer.encode(word)[0]] = torch.tensor(features)
            self.pool.key.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))  # tanh(salience)
            self.pool.key.bias.zero_()
            self.pool.query.copy_(torch.tensor([0.0, 6.0]))
            self.label.weight.copy_(torch.tensor([[-strength, 0.0], [strength, 0.0]]))
            self.label.bias.copy_(torch.tensor([0.5, -0.5]))

    def forward(self, tokens, segments=None, lengths=None):
        return self.embed(tokens)

    def logits(self, hidden, lengths=None):
        return self.label(self.pool(hidden, full_lengths(hidden) if lengths is None else lengths))

    def predict(self, tokens, lengths):
        return self.logits(self(tokens), lengths)


# Only "fine" is evidence. In the first model attention is on "fine", in the second mostly on "loud".
HONEST = {"fine": (1.0, 1.0), "loud": (0.0, 0.0), "plain": (0.0, 0.0), "dull": (0.0, 0.0)}
MISLEADING = {"fine": (1.0, 0.4), "loud": (0.0, 0.8), "plain": (0.0, 0.0), "dull": (0.0, 0.0)}
TEXT = "plain loud fine dull"
FINE, LOUD = 2, 1  # units of TEXT


def bag_of_words(words, strength: float = 8.0, target: str | None = None) -> Explainable:
    model = BagOfWords(words, strength).eval()
    return TextClassification(Classifier(model, device="cpu"), TEXT, target)


class Sum(Explainable):
    """p = sigmoid(sum of the numbers of the kept units): the effect of each unit is known."""

    def __init__(self, numbers) -> None:
        super().__init__(None, tuple(map(str, numbers)), torch.arange(len(numbers)))
        self.numbers = torch.tensor(numbers, dtype=torch.float64)
        self.explain_outputs("yes", ["yes"], [1])

    def forward(self, keep):
        total = (keep * self.numbers).sum(dim=-1)
        return torch.stack((torch.zeros_like(total), total), dim=-1)[:, None]

    def query_rows(self, output):
        return [0]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))

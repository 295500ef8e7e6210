"""One small example of every registered model, for the tests that all models must pass.

A `Case` has the options of a small config, and builds a batch of examples with their targets. The kind of the model
(its interface) defines the shape of the examples, how logits are computed, and the loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.registry import lookup

VOCABULARY, LABELS = 11, 3
ROWS = 8  # examples in a batch


@dataclass(frozen=True)
class Batch:
    """Inputs of a model with the batch first, and targets; `lengths` counts the tokens of rows that are padded."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    lengths: Tensor | None = None

    def row(self, index: int) -> "Batch":
        """Return one example without padding. Only the first input can be padded."""
        inputs, lengths = [x[index : index + 1] for x in self.inputs], None
        if self.lengths is not None:
            lengths = self.lengths[index : index + 1]
            inputs[0] = inputs[0][:, : int(lengths)]
        return Batch(tuple(inputs), self.targets[index : index + 1], lengths)

    def with_other_padding(self) -> "Batch":
        """Return the batch with other tokens in its padding."""
        assert self.lengths is not None
        tokens = self.inputs[0].clone()
        for row, length in zip(tokens, self.lengths.tolist(), strict=True):
            row[length:] = (row[length:] + 1) % VOCABULARY
        return replace(self, inputs=(tokens, *self.inputs[1:]))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def most_likely(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1)


@dataclass(frozen=True)
class Case:
    """A small config of a registered model, and examples to train it on."""

    model: str
    config: dict[str, Any]
    examples: Callable[[torch.Generator], Batch]
    logits: Callable[[nn.Module, Batch], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    predict: Callable[[Tensor], Tensor] = most_likely  # from logits to values that can equal the targets
    steps: int = 300  # of training after which the targets must be predicted
    learning_rate: float = 1e-2
    attention: bool = True  # whether there are attention weights to watch

    def build(self, **changes: Any) -> nn.Module:
        """Build the model with seed 0."""
        network = lookup("model", self.model)
        torch.manual_seed(0)
        return network(network.config_class(**{**self.config, **changes}))

    def batch(self) -> Batch:
        """Return the same examples in each call."""
        return self.examples(torch.Generator().manual_seed(1))

    def train(self, model: nn.Module, steps: int, until: float = 0.0) -> float:
        """Train on the examples with Adam, for some steps or until the loss is low, and return the last loss."""
        batch = self.batch()
        optimizer = torch.optim.Adam(model.train().parameters(), lr=self.learning_rate)
        for _ in range(steps):
            loss = self.loss(self.logits(model, batch), batch.targets)
            if loss.item() < until:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()


def tokens(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(4, VOCABULARY, shape, generator=generator)


def lengths(longest: int) -> Tensor:
    """Lengths of the rows: the first is not padded, one has a single token."""
    return torch.tensor([longest, 1, *(2 + row % (longest - 1) for row in range(ROWS - 2))])


def pairs(generator: torch.Generator) -> Batch:
    """Source, target and padded lengths; the target is predicted from a begin token and its prefix."""
    source, target = tokens(generator, ROWS, 6), tokens(generator, ROWS, 5)
    return Batch((source, F.pad(target[:, :-1], (1, 0), value=2)), target, lengths(6))


def texts(generator: torch.Generator) -> Batch:
    text = tokens(generator, ROWS, 7)
    text[:, 0] = torch.arange(ROWS) + 2  # texts differ in their first token, so that the others can be predicted
    return Batch((text[:, :-1],), text[:, 1:])


def texts_of_two_tokens(generator: torch.Generator) -> Batch:
    """Texts whose first two tokens differ: with relative positions only, "a" and "a a" have the same hidden states."""
    text = tokens(generator, ROWS, 7)
    text[:, 0] = torch.arange(ROWS) + 2
    text[:, 1] = torch.where(text[:, 1] == text[:, 0], 3, text[:, 1])
    return Batch((text[:, :-1],), text[:, 1:])


def labeled_texts(generator: torch.Generator) -> Batch:
    return Batch((tokens(generator, ROWS, 6),), torch.arange(ROWS) % LABELS, lengths(6))


def tagged_words(generator: torch.Generator) -> Batch:
    """Words as character ids; each has a label."""
    words = torch.randint(1, 200, (ROWS, 4, 8), generator=generator)
    return Batch((words,), torch.arange(4 * ROWS).view(ROWS, 4) % LABELS)


def labeled_documents(generator: torch.Generator) -> Batch:
    """Documents of sentences of words; 0 is padding."""
    return Batch((tokens(generator, ROWS, 4, 5),), torch.arange(ROWS) % LABELS, lengths(4))


def stories(generator: torch.Generator) -> Batch:
    """Stories of sentences of words, and questions."""
    return Batch((tokens(generator, ROWS, 4, 5), tokens(generator, ROWS, 3)), torch.arange(ROWS) % LABELS, lengths(4))


def images(generator: torch.Generator) -> Batch:
    return Batch((torch.rand(ROWS, 3, 8, 8, generator=generator),), torch.arange(ROWS) % LABELS)


def captions(generator: torch.Generator) -> Batch:
    pixels, target = torch.rand(ROWS, 3, 8, 8, generator=generator), tokens(generator, ROWS, 5)
    return Batch((pixels, F.pad(target[:, :-1], (1, 0), value=2)), target)


def recordings(generator: torch.Generator) -> Batch:
    """Log-mel features of windows of one length, and what is said in them."""
    features, target = torch.randn(ROWS, 8, 4, generator=generator), tokens(generator, ROWS, 5)
    return Batch((features, F.pad(target[:, :-1], (1, 0), value=2)), target)


def bits(generator: torch.Generator) -> Batch:
    """Copy the previous input."""
    x = torch.randint(0, 2, (ROWS, 5, 4), generator=generator).float()
    return Batch((x,), F.pad(x[:, :-1], (0, 0, 1, 0)))


def episodes(generator: torch.Generator) -> Batch:
    """Labeled images and a query."""
    pixels = torch.randn(ROWS, 7, 1, 8, 9, generator=generator)
    labels = torch.arange(3).repeat(2)[torch.rand(ROWS, 6, generator=generator).argsort()]
    return Batch((pixels, labels), torch.arange(ROWS) % 3)


def games(generator: torch.Generator) -> Batch:
    """Actions and rewards, and the next action."""
    actions = torch.randint(0, 3, (ROWS, 4), generator=generator)
    rewards = torch.randint(0, 2, (ROWS, 4), generator=generator).float()
    return Batch((actions, rewards), torch.arange(ROWS) % 3)


def forward(model: nn.Module, batch: Batch) -> Tensor:
    return model(*batch.inputs)


def forward_with_lengths(model: nn.Module, batch: Batch) -> Tensor:
    return model(*batch.inputs, batch.lengths)


def head_logits(model: nn.Module, batch: Batch) -> Tensor:
    (words,) = batch.inputs
    return model.predict(words, torch.full((len(words),), words.shape[1]) if batch.lengths is None else batch.lengths)


def policy_logits(model: nn.Module, batch: Batch) -> Tensor:
    logits, values = model(*batch.inputs)
    return logits[:, -1] + 0.1 * values[:, -1:] * torch.arange(3)  # both reach the loss


BITS: dict[str, Any] = {"loss": F.binary_cross_entropy_with_logits, "predict": lambda logits: (logits > 0).float()}
PAIR = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "dropout": 0.0}
TEXT = {"vocab_size": VOCABULARY, "dropout": 0.0}
LABELED = {**TEXT, "head": "classifier", "labels": LABELS}
BLOCKS = {"dim": 16, "heads": 2, "layers": 2, "ffn_dim": 24, "attention_dropout": 0.0}

CASES = {
    case.model: case
    for case in (
        Case("bert", {**LABELED, **BLOCKS, "max_length": 8}, labeled_texts, head_logits),
        Case("conv_seq2seq", {**PAIR, "dim": 16, "hidden_dim": 16, "layers": 2}, pairs, forward_with_lengths),
        Case("elmo", {**TEXT, "head": "tagger", "labels": LABELS, "filters": ((1, 4), (3, 8)), "dim": 8,
             "hidden_dim": 12, "max_characters": 8, "character_dim": 4, "task_dropout": 0.0},
             tagged_words, head_logits, attention=False),
        Case("gpt2", {**TEXT, **BLOCKS, "max_length": 8}, texts, forward),
        Case("han", {**LABELED, "embedding_dim": 8, "hidden_dim": 8}, labeled_documents, head_logits),
        Case("linformer", {**LABELED, **BLOCKS, "max_length": 8, "rank": 4}, labeled_texts, head_logits),
        Case("llama", {**TEXT, **BLOCKS, "heads": 4, "kv_heads": 2, "max_length": 8}, texts_of_two_tokens,
             forward),
        Case("lstm_baseline", {"input_dim": 4, "output_dim": 4, "hidden_dim": 24}, bits, forward, attention=False,
             **BITS),
        Case("lstmn", {**TEXT, "embedding_dim": 8, "hidden_dim": 16}, texts, forward, learning_rate=2e-2),
        Case("memory_network", {**TEXT, "labels": LABELS, "dim": 8, "max_memories": 6, "time_noise": 0.0}, stories,
             forward_with_lengths),
        Case("ntm", {"input_dim": 4, "output_dim": 4, "hidden_dim": 24, "locations": 6, "location_dim": 5}, bits,
             forward, learning_rate=2e-2, **BITS),
        Case("rnn_lm", {**TEXT, "embedding_dim": 8, "hidden_dim": 24}, texts, forward, learning_rate=2e-2,
             attention=False),
        Case("rnn_seq2seq", {**PAIR, "embedding_dim": 12, "hidden_dim": 16}, pairs, forward_with_lengths,
             learning_rate=2e-2),
        Case("rnn_text", {**LABELED, "embedding_dim": 8, "hidden_dim": 8}, labeled_texts, head_logits),
        Case("show_attend_tell", {**TEXT, "height": 8, "width": 8, "feature_dim": 8, "embedding_dim": 8,
             "hidden_dim": 12, "encoder": {"name": "cnn", "filters": (8,)}}, captions, forward),
        Case("single_rnn", {**PAIR, "embedding_dim": 12, "hidden_dim": 24}, pairs, forward_with_lengths,
             learning_rate=2e-2, attention=False),
        Case("snail", {"ways": 3, "shots": 2, "height": 8, "width": 9, "conv_layers": 2, "conv_channels": 8,
             "image_dim": 8, "key_dims": (4, 4), "value_dims": (4, 4), "filters": 6}, episodes, forward,
             learning_rate=3e-3),
        Case("snail_policy", {"actions": 3, "length": 6, "key_dims": (4, 4), "value_dims": (4, 4), "filters": 6}, games,
             policy_logits),
        Case("transformer", {**PAIR, "dim": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ffn_dim": 24},
             pairs, forward_with_lengths),
        Case("vit", {"classes": LABELS, "height": 8, "width": 8, "patch": 4, **BLOCKS}, images, forward),
        Case("whisper", {**TEXT, "dim": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ffn_dim": 24,
             "mels": 4, "positions": 4, "max_length": 8}, recordings, forward),
    )
}  # fmt: skip

# Loss after 20 steps of training, on a CPU.
GOLDEN = {
    "bert": 0.112800,
    "conv_seq2seq": 0.921856,
    "elmo": 0.211139,
    "gpt2": 1.424541,
    "han": 0.847174,
    "linformer": 0.060738,
    "llama": 0.745730,
    "lstm_baseline": 0.550728,
    "lstmn": 1.344613,
    "memory_network": 0.404003,
    "ntm": 0.344181,
    "rnn_lm": 1.654599,
    "rnn_seq2seq": 0.449847,
    "rnn_text": 0.698624,
    "show_attend_tell": 1.624922,
    "single_rnn": 1.510581,
    "snail": 0.058877,
    "snail_policy": 0.241350,
    "transformer": 0.505315,
    "vit": 0.136216,
    "whisper": 1.004897,
}

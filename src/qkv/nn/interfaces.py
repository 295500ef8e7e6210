"""Interfaces of the models, as used by search, training, tasks and pipelines, and functions on their states.

States and memories are frozen dataclasses, or tuples, of tensors with the batch first. They are immutable: a step
reuses the tensors that do not change and creates new ones for the rest. An integer or a tensor without dimensions
counts the steps of all rows.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from qkv.attention.layers import attention_layers
from qkv.errors import ShapeError
from qkv.nn.encoders.log_mel import LogMel
from qkv.types import Float, Int, Tensor

if TYPE_CHECKING:
    from qkv.tokenizers import Tokenizer

Source = Int[Tensor, "batch source"] | Float[Tensor, "batch source features"]  # token ids, or features of speech
Memory = TypeVar("Memory")
State = TypeVar("State")


@runtime_checkable
class ProgressDependent(Protocol):
    """A module or task that changes during training, such as annealed attention or scheduled sampling."""

    def set_progress(self, done: float) -> None:
        """Set the fraction of the training that is over; the training loop calls it before each step."""


class Model(nn.Module):
    """Base class of all models: a config and, once loaded, a tokenizer."""

    config_class: ClassVar[type[Any]]
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # named sizes of the config
    description: ClassVar[str] = ""  # one line: the paper and its model
    kind_description: ClassVar[str]  # in error messages about the wrong kind of model
    input_role: ClassVar[Literal["text", "image"]] = "text"  # column of a table with its inputs

    config: Any
    tokenizer: "Tokenizer | None" = None  # set by `qkv.load`; not used by the model itself

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        """The blocks that most of the time is spent in; training can shard them, or recompute their activations."""
        return []

    @property
    def compiled_blocks(self) -> list[nn.Module]:
        """The modules that training can compile one by one: the repeated blocks, or those called at every time step."""
        return self.repeated_blocks


@dataclass(frozen=True)
class EncodedStates:
    """Output of a source encoder."""

    values: Float[Tensor, "batch source dim"]  # h_i
    final: Float[Tensor, "batch layers dim"]  # final state of each layer, or the mean of h_i as one layer
    embedded: Float[Tensor, "batch inputs embedding_dim"]  # e_i: the embedded tokens, input of the first layer
    lengths: Int[Tensor, "batch"] | None = None  # of the rows of `values`; None: those of the source


class SourceEncoder(nn.Module, ABC):
    """Encodes a source text, or the features of a recording, for any decoder.

    Each encoder has the option `dim`, the size of h_i, which defaults to that of the model.
    """

    has_final_states: ClassVar[bool] = False  # whether `final` has a state per layer, and not the mean of h_i
    reads_speech: ClassVar[bool] = False  # whether the source is a recording, not a text
    final_layers: int = 1  # layers of `final`
    dim: int  # of h_i
    embed: nn.Embedding  # of the tokens; a model may tie its weight
    log_mel: LogMel | None = None  # the features that the encoder takes instead of tokens

    @abstractmethod
    def forward(self, source: Source, lengths: Int[Tensor, "batch"]) -> EncodedStates:
        """Encode padded sentences, or recordings."""

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        """Raise ConfigError if the options of an encoder do not fit `dim`."""


class Decoder(Model, ABC, Generic[Memory, State]):
    """Decodes a target token by token, conditioned on a memory (an encoded text or image)."""

    @abstractmethod
    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token."""

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each of `tokens` (at least one), and the state after the last.

        A subclass overrides either this, for any number of tokens at once, or `step`, for one.
        """
        logits_per_step = []
        for token in tokens.unbind(1):
            logits, state = self.step(token, state)
            logits_per_step.append(logits)
        return torch.stack(logits_per_step, dim=1), state

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each token of `target` (teacher forcing)."""
        logits, _ = self.forward_from(target, self.init_state(memory))
        return logits

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits after one more token, and the new state."""
        logits, state = self.forward_from(token[:, None], state)
        return logits[:, 0], state

    @property
    def alignment_layers(self) -> tuple[str, ...]:
        """Names (as in `watch`) of the decoder's attention layers over the source, most informative first.

        By default the last layer comes first. Empty for a model without attention over the source.
        """
        layers = (layer for layer in attention_layers(self) if not layer.startswith("encoder"))
        return tuple(layer for layer in reversed([*layers]) if not layer.endswith(".self"))

    def decode_with_sampling(
        self, target: Int[Tensor, "batch target"], memory: Memory, probability: float, sample: bool = False
    ) -> Float[Tensor, "batch target vocabulary"]:
        """`decode` with scheduled sampling: feed the model's own token with some probability.

        From Bengio, Vinyals, Jaitly and Shazeer (2015). The model's own token is the argmax, which greedy search would
        feed, or with `sample` a random one.
        """
        state = self.init_state(memory)
        steps: list[Tensor] = []
        for token in target.unbind(1):
            if steps:
                sampled = torch.rand_like(token, dtype=torch.float32) < probability
                token = torch.where(sampled, predicted_tokens(steps[-1], sample), token)
            logits, state = self.step(token, state)
            steps.append(logits)
        return torch.stack(steps, dim=1)


class ParallelDecoder(Decoder[Memory, State]):
    """A decoder that computes the logits after all tokens of a target at once, without recurrence."""

    def decode_with_sampling(
        self, target: Int[Tensor, "batch target"], memory: Memory, probability: float, sample: bool = False
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Scheduled sampling in two passes: the model's own tokens are those it predicts after the given target.

        From Mihaylova and Martins (2019).
        """
        with torch.no_grad():
            predicted = predicted_tokens(self.decode(target, memory), sample)[:, :-1]
        sampled = torch.rand_like(predicted, dtype=torch.float32) < probability
        mixed = torch.where(sampled, predicted, target[:, 1:])
        return self.decode(torch.cat((target[:, :1], mixed), dim=1), memory)


def predicted_tokens(logits: Float[Tensor, "*batch vocabulary"], sample: bool) -> Int[Tensor, "*batch"]:
    """Return the most likely tokens or, with `sample`, random ones."""
    if not sample:
        return logits.argmax(dim=-1)
    p = logits.detach().float().softmax(dim=-1)
    return torch.multinomial(p.flatten(0, -2), 1).view(p.shape[:-1])


class EncoderDecoder(Decoder[Memory, State]):
    """Encodes a source text, or the features of a recording, and decodes a target text."""

    kind_description: ClassVar[str] = "an encoder-decoder (for qkv translate)"

    log_mel: LogMel | None = None  # the features that a speech recognizer takes; None: the source is a text

    @abstractmethod
    def encode(self, source: Source, source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        """Encode the source; if the lengths are omitted, rows are assumed to be unpadded."""

    def forward(
        self,
        source: Source,
        target: Int[Tensor, "batch target"],
        source_lengths: Int[Tensor, "batch"] | None = None,
        **inputs: Any,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each target token; `inputs` are further arguments of `encode`."""
        return self.decode(target, self.encode(source, source_lengths, **inputs))


class LanguageModel(Model, ABC, Generic[State]):
    """Predicts the next token: p(x_t | x_1 .. x_{t-1}).

    A state is everything the model carries over, so a text can be processed in chunks, each from the previous chunk's
    state.
    """

    kind_description: ClassVar[str] = "a language model (for qkv generate)"

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Return the state before the first token, for `batch` texts."""

    readout: nn.Linear  # the last layer: the logits are readout(hidden)

    @abstractmethod
    def hidden_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length dim"], State]:
        """Return the input of the readout for each token, and the state after the last."""

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the state after the last."""
        hidden, state = self.hidden_from(tokens, state)
        return self.readout(hidden), state

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits after one more token, and the new state."""
        logits, state = self.forward_from(token[:, None], state)
        return logits[:, 0], state

    def hidden_states(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        """Return the input of the readout for each token of a text."""
        hidden, _ = self.hidden_from(tokens, self.init_state(tokens.shape[0]))
        return hidden

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        return self.readout(self.hidden_states(tokens))

    @property
    def max_length(self) -> int | None:
        """Maximum context length, or None if unbounded."""
        return getattr(self.config, "max_length", None)


class TextEncoder(Model, ABC):
    """Bidirectional text encoder with an optional head: `model.predict(tokens, lengths)` are the head's logits.

    A token is an id, or the character ids of a word.
    """

    kind_description: ClassVar[str] = "a text encoder (for qkv classify, tag, answer, fill, embed)"
    batch_invariant: ClassVar[bool] = False  # whether rows of one width give the same result, bit for bit, in any batch

    @abstractmethod
    def forward(
        self,
        tokens: Int[Tensor, "batch length *characters"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the hidden state of each token; positions beyond a row's length are ignored."""

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Any:
        """Return the head's logits: [batch, labels] for the text, or [batch, length, labels] per token."""

    def predict(self, tokens: Int[Tensor, "batch length *characters"], lengths: Int[Tensor, "batch"]) -> Any:
        """Return the head's logits for a padded batch."""
        return self.logits(self(tokens, lengths=lengths))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the head's labels, or LABEL_0, LABEL_1, ... as in transformers if unnamed."""
        return label_names(self.config.label_names, self.config.labels)

    @property
    def width(self) -> int:
        """Size of a token's hidden state."""
        return int(self.config.dim)


def label_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the names, made unique, or LABEL_0, LABEL_1, ... as in transformers if there are none."""
    counts: Counter[str] = Counter()
    unique = []
    for name in names or [f"LABEL_{number}" for number in range(count)]:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(unique)


class SequenceModel(Model, ABC, Generic[State]):
    """Maps a sequence of vectors to a sequence of logits of bits, step by step.

    Its state summarizes the previous steps, so a sequence can be processed in chunks.
    """

    kind_description: ClassVar[str] = "an algorithmic sequence model (for qkv evaluate, view)"

    config: Any  # has `input_dim` and `output_dim`: the sizes of a step's input and output

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Return the state before the first step, for `batch` sequences."""

    @abstractmethod
    def forward_from(
        self, x: Float[Tensor, "batch steps input_dim"], state: State
    ) -> tuple[Float[Tensor, "batch steps output_dim"], State]:
        """Return the logits of each step, and the state after the last."""

    def forward(self, x: Float[Tensor, "batch steps input_dim"]) -> Float[Tensor, "batch steps output_dim"]:
        logits, _ = self.forward_from(x, self.init_state(x.shape[0]))
        return logits

    def check_input(self, x: Float[Tensor, "..."]) -> None:
        """Raise ShapeError unless x is [batch, steps, input_dim] with at least one step."""
        if x.ndim != 3 or x.shape[-1] != self.config.input_dim or x.shape[1] < 1:
            raise ShapeError(
                f"expected [batch, steps, {self.config.input_dim}] with at least one step, got {list(x.shape)}"
            )


def select(state: State, rows: Int[Tensor, "rows"], *, shared: Any = ()) -> State:
    """Return the given rows of a state, in that order; tensors that also occur in `shared` are kept as they are.

    A tensor that occurs twice is selected once. In beam search, `shared` is the initial state: whatever no step has
    replaced since is the same for all beams of a sentence and need not be copied.
    """
    selected = {id(tensor): tensor for tensor in state_tensors(shared).values()}

    def select_rows(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.ndim == 0:
            return leaf
        if id(leaf) not in selected:
            selected[id(leaf)] = leaf.index_select(0, rows)
        return selected[id(leaf)]

    return _map_leaves(select_rows, state)


def state_tensors(state: Any) -> dict[str, Tensor]:
    """Return every tensor of a state by its path, such as "hidden" or "layers.0.cell"."""
    leaves: dict[str, Any] = {}
    _map_leaves(leaves.setdefault, state)
    return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}


def replace_tensors(state: State, tensors: Mapping[str, Tensor]) -> State:
    """Return the state with the tensors at the given paths replaced."""
    return _map_leaves(tensors.get, state)


def per_row_counters(state: State, batch: int, device: torch.device) -> State:
    """Return the state with one counter per row instead of counters for all rows (integers or tensors without shape).

    So rows at different steps can be in one batch.
    """

    def expand(path: str, leaf: Any) -> Any:
        is_counter = isinstance(leaf, int) or (isinstance(leaf, Tensor) and leaf.ndim == 0)
        return torch.full((batch,), int(leaf), device=device) if is_counter else leaf

    return _map_leaves(expand, state)


def detach_state(state: State) -> State:
    """Return the state detached from the graph, for truncated back-propagation through time."""
    return _map_leaves(lambda path, leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, state)


def _map_leaves(function: Callable[[str, Any], Any], state: Any, path: str = "") -> Any:
    """Return the state with each tensor or number replaced by `function(path, leaf)`."""
    prefix = f"{path}." if path else ""
    if isinstance(state, tuple):
        return tuple(_map_leaves(function, part, f"{prefix}{number}") for number, part in enumerate(state))
    if dataclasses.is_dataclass(state):
        names = [field.name for field in dataclasses.fields(state)]
        cls: Any = type(state)
        return cls(*(_map_leaves(function, getattr(state, name), prefix + name) for name in names))
    return function(path, state)

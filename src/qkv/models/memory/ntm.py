"""Neural Turing machines (Graves, Wayne and Danihelka 2014): a controller with a memory that it can address.

    h_t = tanh(W_h [x_t ; r_{t-1}] + b_h)                   the controller, or h_t = LSTM([x_t ; r_{t-1}], h_{t-1})
    w_t = address(h_t, M_{t-1}, w_{t-1}),   M_t(i) = M_{t-1}(i) * (1 - w_t(i) e_t) + w_t(i) a_t          the write head
    v_t = address(h_t, M_t, v_{t-1}),       r_t = sum_i v_t(i) M_t(i)                                     the read head
    y_t = W_y [h_t ; r_t] + b_y

M_t(i) is the content of location i, w_t and v_t are attention weights over the locations, and the erase vector e_t and
the add vector a_t are linear functions of h_t followed by sigmoid and tanh; * is the elementwise product. With several
read heads, r_t is the concatenation of theirs; several write heads all erase before any of them adds (`WriteHeads`).

`address` is attention over the locations: by content alone, w = softmax_i(beta cos(k, M(i))), where the query k (tanh;
the paper calls it a key) and the strength beta (softplus) are computed from h_t; or by content and location, which can
also keep the previous weights or shift them (`Heads.address`). Initially, M_0(i) = 10^-6 and r_0 = 0; w_0 and v_0 are
learned, or uniform if addressing is by content alone. A trained machine can be given more locations, for longer
sequences than in training: of its parameters, only w_0 and v_0 depend on their number. `qkv.watch` records the heads as
"write_heads" and "read_heads": a row for each step, over the locations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from qkv.attention import Addressing, Attend, Cosine
from qkv.config import Config, Count, NonNegativeInt, Size, require
from qkv.nn.fast import StepLinear
from qkv.nn.interfaces import SequenceModel
from qkv.nn.rnn import LayerState, Recurrent
from qkv.registry import register
from qkv.types import Float, Tensor

INITIAL_MEMORY = 1e-6  # initial content of the memory (Collier and Beel 2018)
INITIAL_FOCUS = 10.0  # initial logit of the first location: heads start there

Memory = Float[Tensor, "batch locations location_dim"]
Weights = Float[Tensor, "batch heads locations"]
OneHot = Float[Tensor, "batch locations locations"]
# One step of a controller: (state, r_{t-1}) -> (h_t, new state); x_t is known to the function.
StepFunction = Callable[[Sequence[LayerState], Tensor], tuple[Tensor, list[LayerState]]]


class NTMConfig(Config):
    """Sizes of the machine; the default input and output are those of the copy task."""

    input_dim: Size = 10  # size of the input of a step; set by the data
    output_dim: Size = 8  # number of bits predicted per step; set by the data
    controller: Literal["feedforward", "lstm"] = "feedforward"  # controller network; feedforward has no state
    hidden_dim: Size = 100  # size of the controller's hidden state
    # At most 4096: each row of the batch needs locations^2 numbers for the one-hot values of the locations.
    locations: Annotated[int, Field(ge=1, le=4096)] = 128  # number of memory locations
    location_dim: Size = 20  # size of a memory location
    read_heads: Count = 1  # number of read heads
    write_heads: Count = 1  # number of write heads
    addressing: Literal["content", "content_and_location"] = "content_and_location"  # how heads select locations
    max_shift: NonNegativeInt = 1  # maximum shift of a head per step, in each direction

    @model_validator(mode="after")
    def check_shift(self) -> "NTMConfig":
        require(
            2 * self.max_shift + 1 <= self.locations,
            f"max_shift must be less than half of the {self.locations} locations, not {self.max_shift}",
        )
        return self


@dataclass(frozen=True)
class State:
    """State between steps."""

    controller: tuple[LayerState, ...]  # h and c of an LSTM; empty for a feed-forward controller
    memory: Float[Tensor, "batch locations location_dim"]  # M_t
    read: Float[Tensor, "batch heads location_dim"]  # r_t
    write_weights: Float[Tensor, "batch write_heads locations"]  # w_t
    read_weights: Float[Tensor, "batch heads locations"]  # v_t


@register("model", "ntm")
class NTM(SequenceModel[State]):
    """Controller with read and write heads on a memory."""

    config_class = NTMConfig
    description = "NTM (Graves et al. 2014): a neural Turing machine with an addressable memory"

    def __init__(self, config: NTMConfig) -> None:
        super().__init__()
        self.config = config
        read_dim = config.read_heads * config.location_dim
        controller = LSTMController if config.controller == "lstm" else FeedForwardController
        self.controller = controller(config.input_dim + read_dim, config.hidden_dim)
        self.write_heads = WriteHeads(config.write_heads, config)
        self.read_heads = ReadHeads(config.read_heads, config)
        self.head_params = nn.Linear(config.hidden_dim, self.write_heads.param_count + self.read_heads.param_count)
        self.readout = nn.Linear(config.hidden_dim + read_dim, config.output_dim)  # W_y and b_y

    @property
    def compiled_blocks(self) -> list[nn.Module]:
        return [self.write_heads, self.read_heads]

    def init_state(self, batch: int) -> State:
        """Return the state before the first step (see `SequenceModel`)."""
        config, like = self.config, self.readout.weight
        return State(
            self.controller.init_state(batch),
            like.new_full((batch, config.locations, config.location_dim), INITIAL_MEMORY),
            like.new_zeros(batch, config.read_heads, config.location_dim),
            self.write_heads.initial_weights(batch, like),
            self.read_heads.initial_weights(batch, like),
        )

    def forward_from(
        self, x: Float[Tensor, "batch steps input_dim"], state: State
    ) -> tuple[Float[Tensor, "batch steps output_dim"], State]:
        """Return the logits of each step, and the new state."""
        self.check_input(x)
        sizes = (self.write_heads.param_count, self.read_heads.param_count)
        # No autocast: rounding errors in the weights add up over the steps.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.readout.weight.dtype)
            controller_step = self.controller.unroll(x)
            # StepLinear: the same linear layer, applied to the input of one step per call
            head_params = StepLinear.from_linear(self.head_params, x.shape[1], x.shape[0])
            controller_state: Sequence[LayerState] = state.controller
            memory, read, w, v = state.memory, state.read, state.write_weights, state.read_weights
            # Attention returns only sum_i w(i) value_i. With the one-hot vector of i as value_i, that is w itself.
            one_hot = torch.eye(memory.shape[1], dtype=memory.dtype, device=memory.device).expand(len(x), -1, -1)
            outputs = []
            for _ in range(x.shape[1]):
                h, controller_state = controller_step(controller_state, read.flatten(1))
                write_params, read_params = head_params(h).split(sizes, dim=-1)
                memory, w = self.write_heads(write_params, memory, w, one_hot)
                read, v = self.read_heads(read_params, memory, v, one_hot)
                outputs.append(torch.cat((h, read.flatten(1)), dim=-1))
            logits = self.readout(torch.stack(outputs, dim=1))
        return logits, State(tuple(controller_state), memory, read, w, v)


class LSTMController(nn.Module):
    """h_t = LSTM([x_t ; r_{t-1}], h_{t-1})."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.recurrent = Recurrent("lstm", inputs, hidden)

    def init_state(self, batch: int) -> tuple[LayerState, ...]:
        zeros = next(self.parameters()).new_zeros(batch, self.recurrent.hidden)
        return ((zeros, zeros),)

    def unroll(self, x: Float[Tensor, "batch steps inputs"]) -> StepFunction:
        """Return a step function, with the products of x and the input weights computed for all steps at once."""
        return self.recurrent.unroll(x)


class FeedForwardController(nn.Module):
    """h_t = tanh(W_h [x_t ; r_{t-1}] + b_h)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, hidden)  # W_h and b_h

    def init_state(self, batch: int) -> tuple[LayerState, ...]:
        return ()

    def unroll(self, x: Float[Tensor, "batch steps inputs"]) -> StepFunction:
        """Return a step function, with W_h x of all steps computed at once."""
        w_x, w_read = self.layer.weight.split((x.shape[-1], self.layer.in_features - x.shape[-1]), dim=1)
        # Each call of `linear` returns W_h [x_t ; r_{t-1}] + b_h of the next step: it adds W_h r_{t-1} to the rest.
        linear = StepLinear(F.linear(x.transpose(0, 1), w_x, self.layer.bias), w_read)
        return lambda state, read: (linear(read).tanh(), [])


class Heads(nn.Module):
    """Attention heads over the memory, controlled by `param_count` numbers at each step, linear in h_t."""

    def __init__(self, heads: int, config: NTMConfig) -> None:
        super().__init__()
        self.heads, self.locations, self.location_dim = heads, config.locations, config.location_dim
        self.by_location = config.addressing == "content_and_location"
        self.address_sizes = {"key": config.location_dim, "strength": 1}  # parameters of a head: k and beta
        if self.by_location:
            self.address_sizes |= {"gate": 1, "sharpening": 1, "shift": 2 * config.max_shift + 1}
        self.param_count = heads * sum(self.address_sizes.values())
        # The controller computes the strength beta at each step, so the score's own scale is fixed at 1.
        self.attend = Attend(Cosine(heads=heads).requires_grad_(False), heads=heads)
        self.initial_logits = nn.Parameter(torch.zeros(heads, config.locations)) if self.by_location else None  # of w_0
        if self.initial_logits is not None:
            with torch.no_grad():
                self.initial_logits[:, 0] = INITIAL_FOCUS

    def initial_weights(self, batch: int, like: Tensor) -> Weights:
        """Return w_0, or v_0 of read heads."""
        if self.initial_logits is None:
            return like.new_full((batch, self.heads, self.locations), 1 / self.locations)
        return self.initial_logits.softmax(dim=-1).expand(batch, -1, -1)

    def address(
        self,
        params: Float[Tensor, "batch params"],
        memory: Memory,
        values: Float[Tensor, "batch locations value_dim"],
        previous: Weights,
    ) -> Float[Tensor, "batch heads value_dim"]:
        """Return sum_i w(i) value_i of each head, with weights w from `params` and the previous weights:

        w_c = softmax_i(beta cos(k, M(i)))                                      by content, with the strength beta
        w_g = g w_c + (1 - g) w_previous                                        gate g
        w'(i) = sum_j w_g(j) s(i - j),   w(i) = w'(i)^gamma / sum_j w'(j)^gamma   circular shift s, sharpening gamma
        """
        parts = params.unflatten(1, (self.heads, 1, -1)).split(tuple(self.address_sizes.values()), dim=-1)
        part = dict(zip(self.address_sizes, parts, strict=True))  # each [batch, heads, 1, size]
        k, strength = part["key"].tanh(), F.softplus(part["strength"][..., 0])
        if self.by_location:
            gate = part["gate"][..., 0].sigmoid()
            sharpening = 1 + F.softplus(part["sharpening"][..., 0])
            shift = part["shift"].softmax(dim=-1)
        else:  # content only: no interpolation with the previous weights, no shift, no sharpening
            gate = sharpening = torch.ones_like(strength)
            shift = torch.ones_like(part["strength"])
        # The align function, from scores to weights. It depends on the step, so it is built for each call.
        align = Addressing(previous[:, :, None], gate, shift, sharpening, strength)
        return self.attend(k, memory[:, None], values[:, None], align=align).output[:, :, 0]


class ReadHeads(Heads):
    """r = sum_i v(i) M(i)."""

    def forward(
        self, params: Float[Tensor, "batch params"], memory: Memory, previous: Weights, one_hot: OneHot
    ) -> tuple[Float[Tensor, "batch heads location_dim"], Weights]:
        """Return r and v: the attention output over the values [M(i) ; one-hot i]."""
        output = self.address(params, memory, torch.cat((memory, one_hot), dim=-1), previous)
        read, weights = output.split((self.location_dim, self.locations), dim=-1)
        return read, weights


class WriteHeads(Heads):
    """M'(i) = M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h: all heads erase, then all heads add."""

    def __init__(self, heads: int, config: NTMConfig) -> None:
        super().__init__(heads, config)
        address_count, change_count = self.param_count, heads * 2 * config.location_dim  # 2: e and a
        self.param_sizes = (address_count, change_count)
        self.param_count = address_count + change_count

    def forward(
        self, params: Float[Tensor, "batch params"], memory: Memory, previous: Weights, one_hot: OneHot
    ) -> tuple[Memory, Weights]:
        """Return M' and w."""
        address, changes = params.split(self.param_sizes, dim=-1)
        weights = self.address(address, memory, one_hot, previous)
        erase, add = changes.unflatten(1, (self.heads, 2 * self.location_dim)).chunk(2, dim=-1)
        erase, add = erase.sigmoid(), add.tanh()  # e and a
        for weight, erased in zip(weights.unbind(1), erase.unbind(1), strict=True):
            memory = memory * (1 - weight[:, :, None] * erased[:, None])
        return torch.baddbmm(memory, weights.transpose(1, 2), add), weights

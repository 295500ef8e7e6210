"""A Transformer stack on a GPU: caches, and one decoding step as a fixed sequence of kernel launches.

The address, the shape and the number of launches never depend on data, so a CUDA graph can record `GPUStack.step` and
replay it while ids, positions, the table and the memory change. Sub-layers hand over the residual stream.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
import triton

from qkv.errors import InputError, Unsupported
from qkv.generation.decoder_stack import Stack
from qkv.generation.gpu import kernels
from qkv.generation.gpu.choices import AttentionChoice, Choice, Chooser, choose, choose_attention, fit
from qkv.generation.gpu.weights import GPUWeights, Linear, Norm, SubLayer
from qkv.nn.feed_forward import ACTIVATIONS
from qkv.types import Float, Int, Tensor

VECTOR_CHUNK = 256  # inputs per step of vector_linear: 8 per thread of a warp
PRELOADED = 48  # registers per thread for weights that vector_linear loads before its inputs exist
PARTS_AT_ONCE = 64  # tiles of the sums of x that are loaded together
MULTIPROCESSORS = 132
MOST_RECORDED = 4096  # tokens of prompts that run in a CUDA graph
Run = Callable[[], None]
Mode = Literal["plain", "residual", "qkv"]  # of the output of a linear layer, as in `kernels`


class GPUStack:
    """A decoder on a GPU with caches for a fixed number of rows, in float32, bfloat16 or int8.

    `table[row, t]` is the row whose cache holds token t of `row`; rows of the table may be permuted between steps.
    `memory_of[row]` is the source that `row` attends to.
    """

    def __init__(
        self,
        weights: GPUWeights,
        rows: int,
        capacity: int,
        memory_rows: int = 0,
        memory_capacity: int = 0,
        *,
        chooser: Chooser = choose,
        attention: AttentionChoice | None = None,
    ) -> None:
        stack, compute = weights.stack, weights.compute
        _check(stack, rows, capacity, memory_rows, memory_capacity)
        self.weights, self.stack, self.device, self.compute = weights, stack, weights.device, compute
        self.rows, self.capacity = rows, capacity
        self._attention = choose_attention(rows) if attention is None else attention
        self._block_m = min(max(16, triton.next_power_of_2(self.rows)), 128)
        self._padded = triton.cdiv(self.rows, self._block_m) * self._block_m
        self._choices = {
            linear.shape: self._fitting(chooser(rows, *linear.shape, weights.dtype)) for linear in weights.linears
        }
        shape = (len(stack.layers), rows, stack.heads, capacity, stack.head_dim)
        self.keys, self.values = (self._empty(shape, compute) for _ in range(2))
        self.table = self._identity(torch.arange(rows, device=self.device))
        shape = (len(stack.layers), memory_rows, stack.heads, memory_capacity, stack.head_dim)
        self.memory_keys, self.memory_values = (self._empty(shape, compute) for _ in range(2))
        self.memory_lengths = self._empty((memory_rows,), torch.int32)
        self.memory_of = self._empty((rows,), torch.int32)
        self.logits = self._empty((rows, self.vocab_size), torch.float32)
        self._allocate_scratch()
        self._prefills: dict[torch.Size, tuple[tuple[Tensor, Tensor], Run]] = {}  # inputs and CUDA graph by their size

    def _allocate_scratch(self) -> None:
        stack = self.stack
        few = all(choice.kind == "vector" for choice in self._choices.values())
        between = torch.float32 if few else self.compute
        self._x = self._empty((self._padded, stack.dim), torch.float32)
        self._h = None if few else self._empty((self._padded, stack.dim), self.compute)  # gain of the next norm * x
        self._sums = self._empty((stack.dim, 2, self._padded), torch.float32)  # of x and x^2 by tiles
        self._parts = 1  # number of tiles in `_sums`
        self._moments = self._empty((2, self._padded), torch.float32)
        self._query = self._empty((self._padded, stack.dim), torch.float32)
        self._attended = self._empty((self._padded, stack.dim), between)
        self._inner = self._empty((self._padded, stack.ffn_dim), between)
        split = [(outputs, choice) for (outputs, _), choice in self._choices.items() if choice.split > 1]
        partial = max((choice.split * self._padded * outputs for outputs, choice in split), default=0)
        self._partial = self._empty((partial,), torch.float32)
        tiles = max((triton.cdiv(outputs, choice.block_n) for outputs, choice in split), default=0)
        self._counters = self._empty((tiles * self._padded // self._block_m,), torch.int32)
        self._attention_splits = [self._attention_split(length) for length in (self.capacity, self._memory_capacity)]
        most = max(split for _, split in self._attention_splits)
        self._attention_partial = self._empty((self.rows, stack.heads, most, stack.head_dim + 2), torch.float32)
        self._attention_counters = self._empty((self.rows, stack.heads), torch.int32)

    @property
    def vocab_size(self) -> int:
        return self.weights.readout.outputs

    @property
    def _memory_capacity(self) -> int:
        return self.memory_keys.shape[3]

    def _fitting(self, choice: Choice) -> Choice:
        if choice.kind != "matrix" or self.device.type != "cuda":
            return choice
        properties = cast(Any, torch.cuda.get_device_properties(self.device))
        return fit(choice, self._block_m, self.compute.itemsize, properties.shared_memory_per_block_optin)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _identity(self, rows: Int[Tensor, "rows"]) -> Int[Tensor, "rows capacity"]:
        return rows.to(torch.int32)[:, None].repeat(1, self.capacity)

    def _attention_split(self, length: int) -> tuple[int, int]:
        """Return how many tokens one program attends to, and the number of programs for `length` tokens."""
        wanted = max(1, 2 * MULTIPROCESSORS // (self.rows * self.stack.heads))
        share = max(self._attention.share, triton.next_power_of_2(triton.cdiv(length, wanted)))
        return share, max(1, triton.cdiv(length, share))

    # ---------------------------------------------------------------------------------------------------------- step

    def step(
        self, ids: Int[Tensor, "rows"], positions: Int[Tensor, "rows"], *, shared: bool = False
    ) -> Float[Tensor, "rows vocabulary"]:
        """Append token `ids[row]` at `positions[row]` of every row; return the logits, in a buffer that is reused.

        Row r attends to its positions 0 ... positions[r]. Both inputs are int32. With `shared`, the table may point to
        tokens that other rows append in the same step.
        """
        if self.device.type == "cuda" and torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self._step(ids, positions, shared)
        return self._step(ids, positions, shared)

    def _step(
        self, ids: Int[Tensor, "rows"], positions: Int[Tensor, "rows"], shared: bool
    ) -> Float[Tensor, "rows vocabulary"]:
        self._embed(ids, positions)
        for sub in self.weights.sub_layers:
            if sub.kind == "ffn":
                self._run(sub.first, None, "plain", self._inner, activation=self.stack.activation)
                self._run(sub.last, self._inner, "residual", sub=sub)
                continue
            if sub.kind == "self":
                self._run(sub.first, None, "qkv", self._query, sub=sub, positions=positions)
            else:
                self._run(sub.first, None, "plain", self._query)
            self._attend(sub, positions, shared)
            self._run(sub.last, self._attended, "residual", sub=sub)
        self._run(self.weights.readout, None, "plain", self.logits)
        return self.logits

    def _embed(self, ids: Int[Tensor, "rows"], positions: Int[Tensor, "rows"]) -> None:
        weight, scale = self.weights.embedding, self.weights.embedding_scale
        norm, dim, positional = self.weights.sub_layers[0].first.norm, self.stack.dim, self.weights.position_table
        kernels.embed[(self.rows,)](
            ids, positions, self.table, weight, scale, positional, None if norm is None else norm.gain,
            self._x, self._h, self._sums, self._padded, self.capacity,
            1 if positional is None else len(positional), float(self.stack.embed_scale),
            DIM=dim, BLOCK=triton.next_power_of_2(dim), num_warps=4, **launch_options(self.device),
        )  # fmt: skip
        self._parts = 1

    def _run(
        self,
        linear: Linear,
        source: Float[Tensor, "padded inputs"] | None,
        mode: Mode,
        out: Float[Tensor, "..."] | None = None,
        *,
        activation: str = "none",
        sub: SubLayer | None = None,
        positions: Int[Tensor, "rows"] | None = None,
    ) -> None:
        """Launch a linear layer; its source is the residual stream if `source` is None."""
        choice, arguments = self._choices[linear.shape], self._arguments(linear, mode, sub)
        arguments |= {"out_ptr": out, "positions_ptr": positions, "ACTIVATION": activation}
        if choice.kind == "vector":
            self._launch_vector(linear, choice, self._x if source is None else source, arguments)
        else:
            source = self._h if source is None else source
            assert source is not None
            self._launch_matrix(linear, choice, source, arguments)
        if mode == "residual":
            self._parts = triton.cdiv(linear.outputs, choice.block_n)

    def _arguments(self, linear: Linear, mode: Mode, sub: SubLayer | None) -> dict[str, Any]:
        """Return the arguments that both kernels for linear layers have."""
        post = not self.stack.pre_norm
        residual_norm = sub.first.norm if mode == "residual" and sub is not None and post else None
        next_norm = None if sub is None else sub.next_norm
        return {
            "eps": float(self.stack.eps),
            "scale_ptr": linear.scale,
            "column_ptr": linear.column,
            "bias_ptr": linear.bias,
            "x_ptr": self._x,
            "moments_ptr": self._moments,
            "rows_padded": self._padded,
            "residual_gain_ptr": None if residual_norm is None else residual_norm.gain,
            "residual_shift_ptr": None if residual_norm is None else residual_norm.shift,
            "h_ptr": self._h,
            "next_gain_ptr": None if next_norm is None else next_norm.gain,
            "sums_ptr": self._sums,
            "key_ptr": self.keys[sub.layer] if mode == "qkv" and sub is not None else None,
            "value_ptr": self.values[sub.layer] if mode == "qkv" and sub is not None else None,
            "capacity": self.capacity,
            "OUTPUTS": linear.outputs,
            "INPUTS": linear.inputs,
            "STORE_MOMENTS": post and linear.norm is not None,
            "MODE": mode,
            "HEADS": self.stack.heads,
            "HEAD_DIM": self.stack.head_dim,
            **launch_options(self.device),
        }

    def _launch_vector(
        self, linear: Linear, choice: Choice, source: Float[Tensor, "padded inputs"], arguments: dict[str, Any]
    ) -> None:
        tiles = choice.block_n // choice.warps
        chunks = triton.cdiv(linear.inputs, VECTOR_CHUNK)
        registers = VECTOR_CHUNK // 32 * linear.weight.element_size() * tiles // 4  # of a chunk
        kernels.vector_linear[(triton.cdiv(linear.outputs, choice.block_n),)](
            source,
            linear.weight,
            None if linear.norm is None else linear.norm.gain,
            ROWS=self.rows,
            TILE=choice.warps,
            TILES=tiles,
            CHUNK=VECTOR_CHUNK,
            CHUNKS=min(chunks, PRELOADED // registers),
            num_stages=1,
            num_warps=choice.warps,
            **arguments,
        )

    def _launch_matrix(
        self, linear: Linear, choice: Choice, source: Float[Tensor, "padded inputs"], arguments: dict[str, Any]
    ) -> None:
        product = self._product(linear, source) if choice.kind == "cublas" else None
        split = 1 if product is not None else choice.split
        blocks = triton.cdiv(linear.outputs, choice.block_n)
        kernels.matrix_linear[(blocks, self._padded // self._block_m, split)](
            source,
            product,
            linear.weight,
            rows=self.rows,
            partial_ptr=self._partial,
            counters_ptr=self._counters,
            BLOCK_M=self._block_m,
            BLOCK_N=choice.block_n,
            BLOCK_K=choice.block_k,
            SPLIT=split,
            parts=self._parts,
            PARTS=1 if linear.norm is None or self._parts == 1 else PARTS_AT_ONCE,
            PREFETCH=has_pdl(self.device),
            num_stages=choice.stages,
            num_warps=choice.warps,
            **arguments,
        )

    def _product(self, linear: Linear, source: Float[Tensor, "padded inputs"]) -> Float[Tensor, "rows outputs"]:
        if linear.scale is not None:
            raise Unsupported("cublas", "int8 weights")
        source, weight = source[: self.rows], linear.weight.t()
        if source.dtype == torch.float32:
            return source @ weight
        return torch.mm(source, weight, out_dtype=torch.float32)

    def _attend(self, sub: SubLayer, positions: Int[Tensor, "rows"], shared: bool) -> None:
        cross = sub.kind == "cross"
        keys, values = (self.memory_keys, self.memory_values) if cross else (self.keys, self.values)
        share, split = self._attention_splits[cross]
        head_dim = self.stack.head_dim
        kernels.attend[(self.stack.heads, self.rows, split)](
            self._query, keys[sub.layer], values[sub.layer], self.memory_of if cross else self.table,
            self.memory_lengths if cross else positions, self._attended, self._attention_partial,
            self._attention_counters, keys.shape[3], float(sub.scale),
            CROSS=cross, HEADS=self.stack.heads, HEAD_DIM=head_dim, TOKENS=self._attention.elements // head_dim,
            SHARE=share, SPLIT=split, SHARED=shared, num_warps=self._attention.warps, **launch_options(self.device),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- prefill

    @torch.no_grad()
    def prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Compute the keys and values of prompts, and let the table point to them.

        Short prompts are limited by the launches, so they are padded to a power of two and run in a CUDA graph.
        """
        longest = max((len(prompt) for prompt in prompts), default=0)
        if longest > self.capacity:
            raise InputError(f"a prompt of {longest} tokens is longer than the capacity of {self.capacity}")
        where = torch.tensor(list(rows), dtype=torch.long)
        if longest == 0:
            self.table[where.to(self.device)] = self._identity(where.to(self.device))
            return
        positions = self.weights.position_table
        limit = self.capacity if positions is None else min(self.capacity, len(positions))
        padded = min(max(16, triton.next_power_of_2(longest)), limit)
        recorded = len(rows) * padded <= MOST_RECORDED and self.device.type == "cuda"
        recorded = recorded and not self.stack.has_cross_attention  # where the host needs a length from the device
        width = padded if recorded else longest
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
        if recorded:
            self._run_recorded_prefill(where, ids)
        else:
            self._prefill(where.to(self.device), ids.to(self.device))

    def _run_recorded_prefill(self, rows: Int[Tensor, "rows"], ids: Int[Tensor, "rows length"]) -> None:
        if ids.shape not in self._prefills:
            with torch.inference_mode(False):
                inputs = rows.to(self.device), ids.to(self.device)
            replay = record_graph(lambda: self._prefill(*inputs), self.device)
            self._prefills[ids.shape] = inputs, replay
        inputs, replay = self._prefills[ids.shape]
        for buffer, values in zip(inputs, (rows, ids), strict=True):
            buffer.copy_(values)
        replay()

    def _prefill(self, rows: Int[Tensor, "rows"], ids: Int[Tensor, "rows length"]) -> None:
        """Run prompts that are padded at the end."""
        longest = ids.shape[1]
        self.table[rows] = self._identity(rows)
        weight, scale = self.weights.embedding, self.weights.embedding_scale
        x = weight[ids].float() if scale is None else weight[ids].float() * scale[ids][..., None]
        x = x * self.stack.embed_scale
        if self.weights.position_table is not None:
            x = x + self.weights.position_table[:longest]
        # What follows the last self-attention only matters for logits.
        last = max(index for index, sub in enumerate(self.weights.sub_layers) if sub.kind == "self")
        # Attention is causal, so the padding at the end of a prompt never affects its tokens.
        for index, sub in enumerate(self.weights.sub_layers):
            residual = normalized = self._normalize(x, sub.first.norm)
            if self.stack.pre_norm:
                residual = x
            match sub.kind:
                case "self":
                    query, key, value = self._heads(self._apply(sub.first, normalized), 3)
                    self.keys[sub.layer, :, :, :longest].index_copy_(0, rows, key)
                    self.values[sub.layer, :, :, :longest].index_copy_(0, rows, value)
                    if index == last:
                        return
                    y = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=sub.scale)
                    y = y.transpose(1, 2).flatten(2)
                case "cross":
                    (query,) = self._heads(self._apply(sub.first, normalized), 1)
                    source = self.memory_of[rows].long()
                    length = int(self.memory_lengths[source].max())
                    key, value = (
                        memory[sub.layer, source, :, :length] for memory in (self.memory_keys, self.memory_values)
                    )
                    mask = torch.arange(length, device=self.device) < self.memory_lengths[source][:, None]
                    mask = mask[:, None, None]
                    y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=sub.scale)
                    y = y.transpose(1, 2).flatten(2)
                case "ffn":
                    y = ACTIVATIONS[cast(Any, self.stack.activation)](self._apply(sub.first, normalized))
            x = residual + self._apply(sub.last, y)  # in float32

    @torch.no_grad()
    def set_memory(
        self,
        memory_rows: Sequence[int],
        hidden: Float[Tensor, "batch source dim"],
        lengths: Int[Tensor, "batch"] | Sequence[int],
    ) -> None:
        """Compute the keys and values of encoded sources for all layers of cross-attention."""
        if hidden.shape[1] > self._memory_capacity:
            raise InputError(
                f"a source of {hidden.shape[1]} tokens is longer than the capacity of {self._memory_capacity}"
            )
        where = torch.tensor(list(memory_rows), dtype=torch.long, device=self.device)
        self.memory_lengths[where] = torch.as_tensor(lengths, device=self.device).to(torch.int32)
        for sub in self.weights.sub_layers:
            if sub.key_value is not None:
                key, value = self._heads(self._apply(sub.key_value, hidden.to(self.device)), 2)
                self.memory_keys[sub.layer, where, :, : hidden.shape[1]] = key
                self.memory_values[sub.layer, where, :, : hidden.shape[1]] = value

    def _apply(self, linear: Linear, x: Float[Tensor, "batch length inputs"]) -> Float[Tensor, "batch length outputs"]:
        weight, bias = linear.weight, linear.own_bias
        if linear.scale is not None:
            weight = (weight.float() * linear.scale[:, None]).to(self.compute)
        return F.linear(x.to(self.compute), weight, bias)

    def _normalize(self, x: Float[Tensor, "batch length dim"], norm: Norm | None) -> Float[Tensor, "batch length dim"]:
        return x if norm is None else F.layer_norm(x, x.shape[-1:], norm.gain, norm.shift, self.stack.eps)

    def _heads(self, x: Float[Tensor, "batch length features"], parts: int) -> Sequence[Tensor]:
        """Split features into `parts` tensors [batch, heads, length, head_dim]."""
        return x.unflatten(-1, (parts, self.stack.heads, self.stack.head_dim)).permute(2, 0, 3, 1, 4).unbind()


def has_pdl(device: torch.device) -> bool:
    """Return whether a device supports programmatic dependent launch."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(device: torch.device) -> dict[str, Any]:
    """Return the options of all launches on a device."""
    return {"PDL": True, "launch_pdl": True} if has_pdl(device) else {"PDL": False}


def _check(stack: Stack, rows: int, capacity: int, memory_rows: int, memory_capacity: int) -> None:
    """Raise an error if the kernels do not support the stack or the sizes are invalid."""
    if rows < 1 or capacity < 1:
        raise InputError(f"a cache needs at least one row and one token, not {rows} and {capacity}")
    if stack.has_cross_attention and (memory_rows < 1 or memory_capacity < 1):
        raise InputError("a decoder with cross-attention needs memory_rows and memory_capacity")


def record_graph(step: Run, device: torch.device) -> Run:
    """Record a step in a CUDA graph and return its replay."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()  # compiles the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
        torch.cuda.synchronize()
    return graph.replay

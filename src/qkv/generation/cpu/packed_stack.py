"""A Transformer stack with packed weights, and the caches of its rows."""

from ctypes import byref

import torch

from qkv.errors import InputError
from qkv.generation.cpu.library import BatchC, CacheC, LayerC, LinearC, NormC, StackC, library
from qkv.generation.decoder_stack import LinearWeights, NormWeights, Stack, WeightType
from qkv.generation.sampling import MIN_TEMPERATURE, Sampling, sample_from
from qkv.nn.quantized import quantize
from qkv.runtime.mapped import release_pages
from qkv.types import Float, Int, Tensor

CODES: dict[WeightType, int] = {"float32": 0, "bfloat16": 1, "int8": 2}
TORCH_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
CANDIDATES = 256  # most likely tokens, which contain most nuclei of top-p sampling
MOST_CANDIDATES = 1024
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5}


def pack(weights: LinearWeights, dtype: WeightType) -> tuple[Tensor, Float[Tensor, "outputs"] | None]:
    """Pack a matrix for the kernels; return its bytes and, for int8, its scales."""
    weight, scale = weights.weight, weights.scale
    if dtype == "int8":
        if scale is None:
            weight, scale = quantize(weight)
    elif scale is not None:
        weight, scale = weight.float() * scale[:, None], None
    rows = weight.to(TORCH_TYPES[dtype]).contiguous()
    packed = torch.empty(library().qkv_packed_bytes(CODES[dtype], *rows.shape), dtype=torch.uint8)
    library().qkv_pack(CODES[dtype], rows.data_ptr(), *rows.shape, packed.data_ptr())
    release_pages(weights.weight)
    return packed, scale


class PackedStack:
    """A stack whose matrices are packed for the CPU kernels, in float32, bfloat16 or int8."""

    def __init__(self, stack: Stack, dtype: WeightType) -> None:
        self.stack, self.dtype = stack, dtype
        self._kernels = library()
        self._tensors: list[Tensor] = []  # keeps the memory that the C structures point to
        self._packed: dict[int, LinearC] = {}
        # The largest matrix first: while a matrix is packed, there are two copies of it.
        readout = LinearC() if stack.readout is None else self._linear(stack.readout)
        layers = (LayerC * len(stack.layers))()
        for to, layer in zip(layers, stack.layers, strict=True):
            to.attention_norm, to.ffn_norm = self._norm(layer.attention_norm), self._norm(layer.ffn_norm)
            to.qkv, to.out = self._linear(layer.qkv), self._linear(layer.out)
            to.up, to.down = self._linear(layer.up), self._linear(layer.down)
            to.scale = layer.scale
            if layer.cross is not None:
                to.cross_norm, to.cross_scale = self._norm(layer.cross.norm), layer.cross.scale
                to.cross_query, to.cross_out = self._linear(layer.cross.query), self._linear(layer.cross.out)
        self.key_values = [self._linear(layer.cross.key_value) for layer in stack.layers if layer.cross is not None]
        self._layers = layers
        self.half_cache = dtype != "float32"
        self.c = StackC(
            dim=stack.dim,
            heads=stack.heads,
            head_dim=stack.head_dim,
            ffn_dim=stack.ffn_dim,
            layers=len(stack.layers),
            positions=0 if stack.position is None else len(stack.position),
            vocab_size=0 if stack.readout is None else stack.readout.outputs,
            pre_norm=stack.pre_norm,
            activation=ACTIVATIONS[stack.activation],
            cross=stack.has_cross_attention,
            half_cache=self.half_cache,
            kv_heads=stack.kv_heads,
            gated=stack.gated,
            eps=stack.eps,
            embed_scale=stack.embed_scale,
            embed=None if stack.tied else self._keep(self._embedding()),
            position=None if stack.position is None else self._keep(stack.position.float()),
            rotation=self._keep(stack.rotation),
            final_norm=self._norm(stack.final_norm),
            readout=readout,
            layer=layers,
        )

    @property
    def vocab_size(self) -> int:
        return int(self.c.vocab_size)

    def cache(self, rows: int, capacity: int) -> "RowCache":
        """Allocate caches for `rows` rows of up to `capacity` tokens."""
        return RowCache(self, rows, capacity)

    def run(
        self,
        ids: Int[Tensor, "tokens"],
        rows: Int[Tensor, "tokens"],
        positions: Int[Tensor, "tokens"],
        lengths: Int[Tensor, "tokens"],
        cache: "RowCache",
        *,
        wanted: Int[Tensor, "wanted"] | None = None,
        memory: "RowCache | None" = None,
        memory_rows: Int[Tensor, "tokens"] | None = None,
        weights: Float[Tensor, "tokens layers heads keys"] | None = None,
        self_weights: Float[Tensor, "tokens layers heads keys"] | None = None,
    ) -> tuple[Float[Tensor, "tokens dim"], Float[Tensor, "wanted vocabulary"] | None]:
        """Run tokens through the stack; return the hidden states, and the logits after the `wanted` tokens.

        All index tensors are int32 and contiguous. Token i, of a row and a position, is cached and attends to the first
        `lengths[i]` tokens of its row. `weights` and `self_weights` receive the attention weights.
        """
        hidden = torch.empty(len(ids), self.stack.dim)
        logits = None if wanted is None else torch.empty(len(wanted), self.vocab_size)
        batch = BatchC(
            tokens=len(ids),
            ids=ids.data_ptr(),
            rows=rows.data_ptr(),
            positions=positions.data_ptr(),
            lengths=lengths.data_ptr(),
            table=cache.table.data_ptr(),
            table_stride=cache.table.shape[1],
            cache=cache.c,
            hidden=hidden.data_ptr(),
            wanted=_pointer(wanted),
            wanted_count=0 if wanted is None else len(wanted),
            logits=_pointer(logits),
            weights=_pointer(weights),
            self_weights=_pointer(self_weights),
        )
        if memory is not None:
            assert memory_rows is not None
            batch.memory, batch.memory_rows = memory.c, memory_rows.data_ptr()
            batch.memory_lengths = memory.lengths.data_ptr()
        if self._kernels.qkv_run(byref(self.c), byref(batch)):
            raise MemoryError("not enough memory for a decoding step")
        return hidden, logits

    def add_memory(
        self,
        hidden: Float[Tensor, "tokens dim"],
        rows: Int[Tensor, "tokens"],
        positions: Int[Tensor, "tokens"],
        memory: "RowCache",
    ) -> None:
        """Compute the keys and values of encoded sources for all layers of cross-attention."""
        for layer, linear in enumerate(self.key_values):
            arguments = (hidden.data_ptr(), len(hidden), rows.data_ptr(), positions.data_ptr())
            if self._kernels.qkv_memory(byref(self.c), layer, byref(linear), *arguments, byref(memory.c)):
                raise MemoryError("not enough memory for the keys and values of the sources")

    def _linear(self, weights: LinearWeights) -> LinearC:
        key = weights.weight.data_ptr()
        if key not in self._packed:
            self._packed[key] = self._pack(weights)
        packed = self._packed[key]
        return LinearC(
            packed.dtype, packed.outputs, packed.inputs, packed.weight, packed.scale, self._keep(weights.bias)
        )

    def _pack(self, weights: LinearWeights) -> LinearC:
        packed, scale = pack(weights, self.dtype)
        return LinearC(CODES[self.dtype], weights.outputs, weights.inputs, self._keep(packed), self._keep(scale), None)

    def _embedding(self) -> Float[Tensor, "vocabulary dim"]:
        embed = self.stack.embed
        table = embed.weight.float() if embed.scale is None else embed.weight.float() * embed.scale[:, None]
        release_pages(embed.weight)
        return table

    def _norm(self, norm: NormWeights | None) -> NormC:
        return NormC() if norm is None else NormC(self._keep(norm.weight), self._keep(norm.bias))

    def _keep(self, tensor: Tensor | None) -> int | None:
        """Keep a tensor alive and return its address."""
        if tensor is None:
            return None
        tensor = tensor.contiguous() if tensor.dtype == torch.uint8 else tensor.float().contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()


class RowCache:
    """Keys and values of the tokens of each row.

    `table[row, t]` is the row that holds token t of `row`: rows that share a beginning share its keys and values.
    """

    def __init__(self, packed: PackedStack, rows: int, capacity: int) -> None:
        stack = packed.stack
        if rows < 1 or capacity < 1:
            raise InputError(f"a cache needs at least one row and one token, not {rows} and {capacity}")
        shape = (len(stack.layers), rows, stack.kv_heads, capacity, stack.head_dim)
        dtype = torch.float16 if packed.half_cache else torch.float32
        self.keys, self.values = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        self.table = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, capacity)
        self.lengths = torch.zeros(rows, dtype=torch.int32)  # of sources; unused for targets
        self.c = CacheC(self.keys.data_ptr(), self.values.data_ptr(), rows, capacity)

    @property
    def rows(self) -> int:
        return self.table.shape[0]

    @property
    def capacity(self) -> int:
        return self.table.shape[1]


def log_sum_exp(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
    """Return log sum_v exp(logits[:, v])."""
    out = torch.empty(len(logits))
    library().qkv_log_sum_exp(logits.data_ptr(), *logits.shape, out.data_ptr())
    return out


def top_k(values: Float[Tensor, "rows vocabulary"], k: int) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """Return the k largest values of each row and their indices, as `torch.topk` does."""
    top, indices = torch.empty(len(values), k), torch.empty(len(values), k, dtype=torch.long)
    library().qkv_top_k(values.data_ptr(), *values.shape, k, top.data_ptr(), indices.data_ptr())
    return top, indices


def sample_tokens(
    logits: Float[Tensor, "rows vocabulary"], sampling: Sampling, uniform: Float[Tensor, "rows"]
) -> Int[Tensor, "rows"] | None:
    """Sample as `Sampling` defines it, from the most likely tokens only; None if these are not enough."""
    temperature, k = max(sampling.temperature, MIN_TEMPERATURE), sampling.top_k
    if k is None and sampling.top_p is None:
        tokens = torch.empty(len(logits), dtype=torch.long)
        library().qkv_sample(logits.data_ptr(), *logits.shape, temperature, uniform.data_ptr(), tokens.data_ptr())
        return tokens
    if (k or CANDIDATES) > min(MOST_CANDIDATES, logits.shape[1]):
        return None
    values, indices = top_k(logits, k or CANDIDATES)
    p = ((values.double() - values[:, :1].double()) / temperature).exp()
    if k is None:
        totals = torch.empty(len(logits), 1, dtype=torch.double)
        library().qkv_exp_sum(logits.data_ptr(), *logits.shape, temperature, totals.data_ptr())
    else:
        totals = p.sum(dim=1, keepdim=True)
    p /= totals
    if sampling.top_p is not None:
        before = p.cumsum(dim=1) - p
        if k is None and bool((before[:, -1] < sampling.top_p).any()):  # less likely tokens belong to the nucleus, too
            return None
        p = p.masked_fill(before >= sampling.top_p, 0.0)
    indices, order = indices.sort(dim=1)
    return indices.gather(1, sample_from(p.gather(1, order), uniform)[:, None])[:, 0]


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

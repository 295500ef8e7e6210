"""Factories of all terms of the operator, and the combinations that each backend must support."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from qkv.attention import (
    Additive,
    ALiBi,
    Bilinear,
    Causal,
    Concat,
    Cosine,
    Dense,
    Documents,
    Dot,
    Entmax,
    Hard,
    LocalMonotonic,
    LocalPredictive,
    Location,
    LowRankBilinear,
    Padding,
    Prefix,
    Quadratic,
    Relative,
    Rotary,
    ScaledDot,
    Softmax,
    Sparsemax,
    TreeRelative,
    Uniform,
    Window,
)  # fmt: skip
from qkv.attention.addressing import Addressing
from qkv.attention.tree import Trees


@dataclass(frozen=True)
class Sizes:
    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    queries: int = 4
    keys: int = 5
    dim: int = 6
    value_dim: int = 3

    @property
    def weighted_heads(self) -> int:
        """Heads of the score parameters: 1 if query heads share keys, since per-head parameters need as many keys."""
        return self.heads if self.heads == self.kv_heads else 1


@dataclass(frozen=True)
class Make:
    """Builds terms with values representable in `low`, in the given dtype and on the given device."""

    sizes: Sizes
    low: torch.dtype
    dtype: torch.dtype
    device: str = "cpu"

    def module(self, module: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        for weight in module.parameters():
            weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) / 2
        return module.to(self.low).to(self.device, self.dtype)

    def tensor(self, *shape: int, seed: int = 0) -> Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return values.to(self.low).to(self.device, self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(2)).to(self.device)


Factory = Callable[[Make], object]

SCORES: dict[str, Factory] = {
    "dot": lambda make: Dot(),
    "scaled dot": lambda make: ScaledDot(),
    "bilinear": lambda make: make.module(Bilinear(make.sizes.dim, make.sizes.dim, heads=make.sizes.weighted_heads)),
    "low-rank bilinear": lambda make: make.module(LowRankBilinear(make.sizes.dim, make.sizes.dim, rank=3)),
    "cosine": lambda make: make.module(Cosine(heads=make.sizes.heads)),
    "additive": lambda make: make.module(Additive(make.sizes.dim, make.sizes.dim, 5)),
    "additive by head": lambda make: make.module(
        Additive(make.sizes.dim, make.sizes.dim, 5, heads=make.sizes.weighted_heads)
    ),
    "concat": lambda make: make.module(Concat(make.sizes.dim, make.sizes.dim, 5)),
    "location": lambda make: make.module(Location(make.sizes.dim, make.sizes.keys + 1)),
}

ALIGNS: dict[str, Factory] = {
    "softmax": lambda make: Softmax(),
    "softmax, temperature 0.7": lambda make: Softmax(temperature=0.7),
    "uniform": lambda make: Uniform(),
    "local-m": lambda make: LocalMonotonic(window=1),
    "local-p": lambda make: make.module(LocalPredictive(make.sizes.dim, window=2)),
    "hard": lambda make: Hard().eval(),
    "hard, straight through": lambda make: Hard("straight-through").train(),
    "sparsemax": lambda make: Sparsemax(),
    "entmax 1.5": lambda make: Entmax(1.5),
    "entmax 1.25": lambda make: Entmax(1.25),
    "turing addressing": lambda make: _addressing(make),
}

POSITIONS: dict[str, Factory] = {
    "none": lambda make: None,
    "rotary": lambda make: Rotary(make.sizes.dim),
    "alibi": lambda make: ALiBi(make.sizes.heads),
    "quadratic": lambda make: make.module(Quadratic(make.sizes.heads, columns=2)),
    "shaw": lambda make: make.module(Relative(make.sizes.dim, 2, make.sizes.value_dim)),
    "shaw, keys only": lambda make: make.module(Relative(make.sizes.dim, 2, values=False)),
    "tree": lambda make: _tree(make, values=True),
    "tree, keys only": lambda make: _tree(make, values=False),
}

MASKS: dict[str, Factory] = {
    "none": lambda make: None,
    "causal": lambda make: Causal(),
    "padding": lambda make: Padding(_lengths(make)),
    "window": lambda make: Window(1, 2),
    "prefix": lambda make: Causal() | Prefix(2),
    "documents": lambda make: Documents(make.integers(0, 2, make.sizes.batch, make.sizes.keys)),
    "dense": lambda make: Dense(
        make.integers(0, 3, make.sizes.batch, make.sizes.heads, make.sizes.queries, make.sizes.keys) > 0
    ),
    "causal and padding": lambda make: Causal() & Padding(_lengths(make)),
    "not causal": lambda make: ~Causal(),
}

Case = tuple[str, str, str, str]  # score, alignment, position, mask
Product = tuple[Collection[str], Collection[str], Collection[str], Collection[str]]

DOT_PRODUCTS = ("dot", "scaled dot", "bilinear", "low-rank bilinear", "cosine")
HIDDEN_LAYERS = ("additive", "additive by head", "concat")
SOFTMAXES = ("softmax", "softmax, temperature 0.7", "uniform", "local-m")
SCORE_POSITIONS = (
    "none",
    "rotary",
    "alibi",
    "quadratic",
    "shaw, keys only",
    "tree, keys only",
)  # add nothing to the output

# Each backend supports exactly the union of these Cartesian products.
SUPPORTED: dict[str, tuple[Product, ...]] = {
    "reference": ((SCORES, ALIGNS, POSITIONS, MASKS),),
    "sdpa": ((DOT_PRODUCTS, SOFTMAXES, SCORE_POSITIONS, MASKS),),
    "flex": (
        (DOT_PRODUCTS, SOFTMAXES, SCORE_POSITIONS, MASKS),
        (DOT_PRODUCTS, ("local-p",), SCORE_POSITIONS, ("none", "padding")),
    ),
    "triton": ((HIDDEN_LAYERS, SOFTMAXES, ("none", "rotary"), MASKS),),
    "gather": ((SCORES, ("hard",), SCORE_POSITIONS, MASKS),),
}
CPU_INFERENCE_ONLY = ("flex",)  # these backends have no backward pass on the CPU
CASES: list[Case] = list(product(SCORES, ALIGNS, POSITIONS, MASKS))


def supported_cases(backend: str, score: str | None = None, align: str | None = None) -> list[Case]:
    """Return the cases that a backend must support, in the order of `CASES`, with one score or alignment if given."""
    supported = {case for factors in SUPPORTED[backend] for case in product(*factors)}
    return [case for case in CASES if case in supported and score in (None, case[0]) and align in (None, case[1])]


def build_terms(make: Make, case: Case) -> dict[str, object]:
    """Build the terms of a case, as keyword arguments of `attend`."""
    factories = (SCORES, ALIGNS, POSITIONS, MASKS)
    names = ("score", "align", "position", "mask")
    return {name: kind[term](make) for name, kind, term in zip(names, factories, case, strict=True)}


def _lengths(make: Make) -> Tensor:
    """Random lengths, the first one 0."""
    lengths = make.integers(0, make.sizes.keys + 1, make.sizes.batch)
    lengths[:1] = 0
    return lengths


def _addressing(make: Make) -> Addressing:
    queries = (make.sizes.batch, make.sizes.heads, make.sizes.queries)
    return Addressing(
        previous=make.tensor(*queries, make.sizes.keys, seed=3).softmax(dim=-1),
        gate=make.tensor(*queries, seed=4).sigmoid(),
        shift=make.tensor(*queries, 3, seed=5).softmax(dim=-1),
        sharpening=1 + make.tensor(*queries, seed=6).abs(),
    )


def _tree(make: Make, *, values: bool) -> object:
    words = max(make.sizes.queries, make.sizes.keys)
    head_of = [
        [(word + row) * 7 % (word or 1) + bool(word) for word in range(words)] for row in range(make.sizes.batch)
    ]
    distances = (
        Trees.from_heads(torch.tensor(head_of)).relative()[:, : make.sizes.queries, : make.sizes.keys].to(make.device)
    )
    return make.module(TreeRelative(make.sizes.dim, 2, make.sizes.value_dim, values=values)).with_distances(distances)

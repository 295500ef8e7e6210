"""Training speed compared with nanoGPT, transformers, JoeyNMT and OpenNMT-py: interleaved full updates in one run.

    python -m benchmarks.training                     all cases of this machine: of the GPU if there is one
    python -m benchmarks.training gpt2 vit            some cases
    python -m benchmarks.training --rounds 9          more rounds; ratios are taken inside a round, then their median
    python -m benchmarks.training gpt2 --data FILE    token ids (uint16) instead of random ones, for the loss curve
    python -m benchmarks.training --peers FOLDER      where the sources of the peers lie [.peers]

An update is the forward pass, the loss, the backward pass, clipping and the optimizer, at the same sizes for all, with
the loss and the optimizer that each trains with; ours is the step of qkv's trainer, with CUDA graphs and compiled
blocks. A peer that is not installed is left out (see benchmarks.training_peers). Speeds are printed only if our losses
over a few updates are those of a reference: nanoGPT from the same weights for GPT-2, the formula in float64 for the
GRU, and the plain operations in float32 for the rest.
"""

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import training_peers as peers
from benchmarks.timing import GPU, tell
from benchmarks.training_peers import CLIP, RATE, SMOOTHING, Update
from qkv.config import Term
from qkv.datasets.batching import IGNORE, PairBatch
from qkv.datasets.tensor_batch import NamedTensors, TensorBatch
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.nn import fast
from qkv.nn.losses import linear_cross_entropy, mean_cross_entropy
from qkv.tasks.base.train_config import TrainConfig
from qkv.tokenizers.trained import BEGIN, END, SPECIAL
from qkv.training.environment import has_bfloat16_products
from qkv.training.optimizer import build_optimizer
from qkv.training.step import CudaGraphTrainStep, TrainStep, prepare_blocks
from qkv.training.update import GuardedUpdate

DEVICE = torch.device("cuda" if GPU else "cpu")
PRECISION = "bfloat16" if GPU or has_bfloat16_products() else "float32"  # as qkv's trainer chooses it for these sizes
PEER_PRECISION = "bfloat16" if GPU else "float32"  # on the CPU the peers train in float32; autocast is timed separately
CHECKED_UPDATES = 3
CURVE = 200  # updates of the loss curve of GPT-2
WARM_UP = 100  # of them with a rising learning rate, as nanoGPT trains; without it, rounding grows to 1.6 % of the loss
MAX_ERROR = {"float32": 1e-4, "bfloat16": 5e-3}  # of the loss
MAX_CURVE_ERROR = 1e-2  # mean difference to nanoGPT's curve, relative to its loss


@dataclass(frozen=True)
class Case:
    """One comparison: `items` of work per update, and the contenders, ours first."""

    title: str
    items: int
    unit: str
    contenders: dict[str, Callable[[], Update]]
    error: Callable[[], float]  # of our losses, relative to the reference
    max_error: float = MAX_ERROR[PRECISION]
    operations: float = 0.0  # floating-point operations per item, for the utilization


# ------------------------------------------------------------------------------------------------------------ ours


def our_update(
    model: Any,
    loss: Callable[[Any], Tensor],
    batch: Callable[[], TensorBatch],
    config: TrainConfig,
    precision: str = PRECISION,
    *,
    compiled: bool = GPU,
    warm_up: int = 1,
) -> Update:
    """An update as in qkv's trainer, including the delayed report; the learning rate rises over `warm_up` updates."""
    prepare_blocks(model, compiled=compiled, recompute=config.recompute)
    step = (CudaGraphTrainStep if GPU else TrainStep)(model, loss, precision, config.clip)
    update = GuardedUpdate(build_optimizer(model, config), config, DEVICE)
    previous: list[Any] = []
    updates = itertools.count(1)

    def run() -> Tensor:
        output = step(batch())
        report = update(0, output, config.lr * min(1.0, next(updates) / warm_up))
        if previous:
            assert not previous.pop().read().skipped
        previous.append(report)
        return output.loss

    return run


def error_against_plain(make: Callable[[], nn.Module], ours: Callable[[Any], Update], loss: Any, batch: Any) -> float:
    """Deviation of our losses over a few updates from those of the plain operations in float32."""
    torch.manual_seed(0)
    model: Any = make()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    reference = peers.plain_update(lambda: loss(plain, batch), optimizer, DEVICE, "float32")
    update = ours(model)
    worst = 0.0
    for _ in range(CHECKED_UPDATES):
        own = update().item()
        with fast.disabled():
            expected = reference().item()
        worst = max(worst, abs(own / expected - 1))
    return worst


# ----------------------------------------------------------------------------------------------------------- GPT-2


@dataclass(frozen=True)
class TextWork:
    """Rows of a text, in the same random order for all."""

    batch: int
    length: int
    sizes: dict[str, int]  # as nanoGPT names them
    tokens: np.ndarray[Any, np.dtype[Any]] = field(repr=False)
    rate: float = 6e-4

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        random = np.random.default_rng(0)
        while True:
            begins = random.integers(0, len(self.tokens) - self.length - 1, self.batch)
            rows = torch.from_numpy(np.stack([self.tokens[b : b + self.length + 1] for b in begins]).astype(np.int64))
            rows = rows.pin_memory().to(DEVICE, non_blocking=True) if GPU else rows
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def our_model(self) -> GPT2:
        """Our GPT-2 with the weights of nanoGPT's."""
        torch.manual_seed(0)
        theirs = peers.nano_gpt(self.sizes)
        model = GPT2(
            GPT2Config(
                vocab_size=self.sizes["vocab_size"], dim=self.sizes["n_embd"], heads=self.sizes["n_head"],
                layers=self.sizes["n_layer"], max_length=self.sizes["block_size"], dropout=0.0, attention_dropout=0.0,
                activation="gelu",
            )
        )  # fmt: skip
        names = {
            "wte": "embed", "wpe": "positions", "ln_f": "norm", "h.": "blocks.", "ln_1": "attention_norm",
            "attn.c_attn": "attention.qkv_proj", "attn.c_proj": "attention.out_proj", "ln_2": "ffn_norm",
            "mlp.c_fc": "ffn.up_proj", "mlp.c_proj": "ffn.down_proj", "transformer.": "", "lm_head": "readout",
        }  # fmt: skip
        weights = {}
        for name, weight in theirs.state_dict().items():
            for old, new in names.items():
                name = name.replace(old, new)
            weights[name] = weight
        model.load_state_dict(weights)
        return model.to(DEVICE).train()

    def ours(self, warm_up: int = 1) -> Update:
        model, batches = self.our_model(), self.batches()

        def loss(batch: NamedTensors) -> Tensor:
            return linear_cross_entropy(model.hidden_states(batch["inputs"]), model.readout, batch["targets"], IGNORE)

        def batch() -> NamedTensors:
            inputs, targets = next(batches)
            return NamedTensors({"inputs": inputs, "targets": targets})

        config = TrainConfig(lr=self.rate, beta2=0.95, weight_decay=0.1, clip=CLIP)
        return our_update(model, loss, batch, config, warm_up=warm_up)

    def nano_gpt(self, *, compiled: bool, precision: str = PEER_PRECISION, warm_up: int = 1) -> Update:
        torch.manual_seed(0)
        model = peers.nano_gpt(self.sizes).to(DEVICE).train()
        batches = self.batches()
        return peers.nano_gpt_update(
            model, lambda: next(batches), compiled=compiled, precision=precision, rate=self.rate, warm_up=warm_up
        )

    def error(self) -> float:
        """Mean relative difference between our loss curve and nanoGPT's."""
        ours, theirs = self.ours(WARM_UP), self.nano_gpt(compiled=False, warm_up=WARM_UP)
        curves = [torch.stack([update().clone() for _ in range(CURVE)]).double() for update in (ours, theirs)]
        difference = ((curves[0] - curves[1]) / curves[1]).abs()
        tell(
            "training", "loss curve",
            ours=[round(v, 4) for v in curves[0][:: CURVE // 10].tolist()],
            nano_gpt=[round(v, 4) for v in curves[1][:: CURVE // 10].tolist()],
            mean_difference=f"{difference.mean():.1e}", largest_difference=f"{difference.max():.1e}",
        )  # fmt: skip
        return float(difference.mean())

    def case(self, title: str) -> Case:
        sizes = self.sizes
        parameters = 12 * sizes["n_layer"] * sizes["n_embd"] ** 2 + sizes["vocab_size"] * sizes["n_embd"]
        operations = 6 * parameters + 12 * sizes["n_layer"] * sizes["n_embd"] * self.length  # as nanoGPT counts them
        contenders = {
            "qkv": self.ours,
            "nanoGPT, compiled": partial(self.nano_gpt, compiled=True),
            "nanoGPT": partial(self.nano_gpt, compiled=False),
        }
        if PRECISION != PEER_PRECISION:
            contenders["nanoGPT, autocast"] = partial(self.nano_gpt, compiled=False, precision=PRECISION)
        return Case(
            f"{title}, {self.batch} x {self.length}, {PRECISION} on {DEVICE.type}",
            self.batch * self.length,
            "tokens/s",
            contenders,
            self.error,
            MAX_CURVE_ERROR,
            operations,
        )


# ------------------------------------------------------------------------------------------------------------- ViT


def vit_case(batch: int = 128) -> Case:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 224, 224, generator=generator).to(DEVICE)
    labels = torch.randint(1000, (batch,), generator=generator).to(DEVICE)
    data = NamedTensors({"images": images, "labels": labels})

    def make() -> ViT:
        torch.manual_seed(0)
        return ViT(ViTConfig(classes=1000, height=224, width=224)).to(DEVICE).train()

    def loss(model: ViT, batch: NamedTensors) -> Tensor:
        return F.cross_entropy(model(batch["images"]).float(), batch["labels"])

    def ours(model: ViT) -> Update:
        config = TrainConfig(lr=RATE, weight_decay=0.0, clip=CLIP)
        return our_update(model, partial(loss, model), lambda: data, config)

    return Case(
        f"ViT-B/16 at 224 pixels, batch {batch}, {PRECISION} on {DEVICE.type}", batch, "images/s",
        {"qkv": lambda: ours(make()), "transformers, compiled": partial(peers.transformers_vit, images, labels)},
        partial(error_against_plain, make, ours, loss, data), operations=3 * 35.2e9,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------- sequence to sequence


@dataclass(frozen=True)
class PairWork:
    """Random pairs of sentences of equal length, so that padding does not penalize the peers."""

    batch: int
    length: int
    embedding: int
    encoder: int = 0  # of the GRU, in each direction
    decoder: int = 0  # of the GRU
    layers: int = 0  # of the Transformer
    heads: int = 8
    ffn: int = 2048
    device: torch.device = DEVICE
    precision: str = PEER_PRECISION  # of the peers
    vocabulary: int = 8000
    dropout: float = 0.1

    def data(self) -> PairBatch:
        generator = torch.Generator().manual_seed(0)

        def words(length: int) -> Tensor:
            return torch.randint(len(SPECIAL), self.vocabulary, (self.batch, length), generator=generator)

        source, target = words(self.length), words(self.length - 1)
        edge = torch.ones(self.batch, 1, dtype=torch.long)
        lengths = torch.full((self.batch,), self.length)
        target_in, target_out = torch.cat((BEGIN * edge, target), 1), torch.cat((target, END * edge), 1)
        return PairBatch(source, lengths, target_in, target_out, self.batch * self.length).to(self.device)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return (self._transformer() if self.layers else self._rnn()).to(self.device).train()

    def _rnn(self) -> RNNSeq2Seq:
        config = RNNSeq2SeqConfig(
            source_vocab_size=self.vocabulary, target_vocab_size=self.vocabulary, embedding_dim=self.embedding,
            hidden_dim=self.decoder, encoder=Term("encoder", "rnn", {"dim": 2 * self.encoder}), dropout=self.dropout,
            context_dropout=0.0,  # the peers drop no states of a one-layer encoder either
            max_length=self.length + 1,
        )  # fmt: skip
        return RNNSeq2Seq(config)

    def _transformer(self) -> Transformer:
        config = TransformerConfig(
            source_vocab_size=self.vocabulary, target_vocab_size=self.vocabulary, dim=self.embedding, heads=self.heads,
            encoder_layers=self.layers, decoder_layers=self.layers, ffn_dim=self.ffn, dropout=self.dropout,
            max_length=self.length + 1,
        )  # fmt: skip
        return Transformer(config)

    def loss(self, model: Any, batch: PairBatch) -> Tensor:
        logits = model(batch.source, batch.target_in, batch.source_lengths)
        return mean_cross_entropy(logits, batch.target_out, IGNORE, SMOOTHING, consume=True)

    def ours(self, model: nn.Module | None = None) -> Update:
        model, data = model or self.model(), self.data()
        config = TrainConfig(lr=RATE, weight_decay=0.0, clip=CLIP)
        return our_update(model, partial(self.loss, model), lambda: data, config)

    def error(self) -> float:
        work = replace(self, dropout=0.0)
        if self.layers:
            return error_against_plain(work.model, work.ours, work.loss, work.data())
        return work.error_against_formula()

    def error_against_formula(self) -> float:
        """Deviation of our losses from the formula, one step of the decoder at a time, in float64.

        -sum_t [(1 - e) log p(y_t) + e / V sum_v log p(v)] / T. A wrong gradient, clip or update shows in the second
        loss.
        """
        model = self.model()
        exact, batch = copy.deepcopy(model).double(), self.data()
        update = self.ours(model)
        optimizer = torch.optim.Adam(exact.parameters(), lr=RATE, betas=(0.9, 0.98))
        formula = peers.plain_update(lambda: _formula(exact, batch), optimizer, self.device, "float32")
        return max(abs(update().item() / formula().item() - 1) for _ in range(CHECKED_UPDATES))

    def case(self, title: str) -> Case:
        contenders: dict[str, Callable[[], Update]] = {"qkv": self.ours}
        if self.layers:
            contenders |= {
                "joeynmt": partial(peers.joeynmt_transformer, self),
                "joeynmt, helped": partial(peers.joeynmt_transformer, self, helped=True),
                "transformers": partial(peers.transformers_marian, self),
                "nn.Transformer": partial(peers.torch_transformer, self),
                "nn.Transformer, compiled": partial(peers.torch_transformer, self, compiled=True),
            }
        else:
            contenders |= {
                "joeynmt": partial(peers.joeynmt_rnn, self),
                "joeynmt, helped": partial(peers.joeynmt_rnn, self, helped=True),
                "plain loop": partial(peers.torch_rnn, self),
                "no attention": partial(peers.torch_rnn_without_attention, self),
            }
            if self.decoder == 2 * self.encoder:  # the only width that OpenNMT-py offers
                contenders["opennmt-py"] = partial(peers.opennmt_rnn, self)
        if self.precision != PRECISION:
            autocast = replace(self, precision=PRECISION)
            if self.layers:
                contenders["nn.Transformer, autocast"] = partial(peers.torch_transformer, autocast)
            else:
                contenders["plain loop, autocast"] = partial(peers.torch_rnn, autocast)
        return Case(
            f"{title}, {self.batch} x {self.length}, {PRECISION} on {self.device.type}",
            self.batch * self.length, "target tokens/s", contenders, self.error,
        )  # fmt: skip


def _formula(model: Any, batch: PairBatch) -> Tensor:
    state = model.init_state(model.encode(batch.source, batch.source_lengths))
    total = torch.zeros((), dtype=torch.float64, device=batch.source.device)
    for token, wanted in zip(batch.target_in.unbind(1), batch.target_out.unbind(1), strict=True):
        logits, state = model.step(token, state)
        log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
        total = total - ((1 - SMOOTHING) * log_p.gather(1, wanted[:, None])[:, 0] + SMOOTHING * log_p.mean(-1)).sum()
    return total / batch.tokens


# ------------------------------------------------------------------------------------------------------------ ELMo


def elmo_case(batch: int = 256, words: int = 62) -> Case:
    """The language model of the recipe imdb-elmo; the reference is its plain loop over the steps."""
    generator = torch.Generator().manual_seed(0)
    characters = torch.randint(1, 256, (batch, words, 20), generator=generator)
    targets = torch.randint(1, 20000, (batch, words + 1), generator=generator)
    data = NamedTensors({"characters": characters, "targets": targets}).to(DEVICE)

    def make() -> Elmo:
        torch.manual_seed(0)
        filters = ((1, 32), (2, 64), (3, 128), (4, 256), (5, 512))
        config = ElmoConfig(
            head="language_model", vocab_size=20000, max_characters=20, filters=filters, highway_layers=1,
            normalize_words=True, dim=256, hidden_dim=1024, layers=2, dropout=0.0,
        )  # fmt: skip
        return Elmo(config).to(DEVICE).train()

    def loss(model: Elmo, batch: NamedTensors) -> Tensor:
        hidden = model.bilm_hidden(batch["characters"])
        return 0.5 * sum(linear_cross_entropy(one, model.readout, batch["targets"], 0) for one in hidden)

    def ours(model: Elmo) -> Update:
        config = TrainConfig(lr=RATE, weight_decay=0.0, clip=CLIP)
        return our_update(model, partial(loss, model), lambda: data, config)

    def plain() -> Update:
        """The plain loop over the steps, in CUDA graphs on a GPU."""
        update = ours(make())

        def run() -> Tensor:
            with fast.disabled():
                return update()

        return run

    return Case(
        f"ELMo 256/1024, {batch} x {words + 2}, {PRECISION} on {DEVICE.type}", batch * words, "words/s",
        {"qkv": lambda: ours(make()), "plain loop": plain}, partial(error_against_plain, make, ours, loss, data),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- timing


def cases(data: Path | None) -> dict[str, Callable[[], Case]]:
    """The cases of this machine by name."""

    def text(vocabulary: int) -> np.ndarray[Any, np.dtype[Any]]:
        if data is not None:
            return np.memmap(data, dtype=np.uint16, mode="r")
        return np.random.default_rng(1).integers(0, vocabulary, 2**22, dtype=np.uint16)

    if not GPU:
        small = {"vocab_size": 65, "block_size": 64, "n_layer": 4, "n_head": 4, "n_embd": 128}
        characters = np.random.default_rng(1).integers(0, 65, 2**20, dtype=np.uint16)
        return {
            "char-gpt": lambda: TextWork(12, 64, small, characters, 1e-3).case("character GPT, 4 layers, width 128"),
            "transformer": lambda: PairWork(64, 20, 256, layers=3, heads=8, ffn=1024).case("Transformer 3 + 3, 256"),
            "gru": lambda: PairWork(64, 20, 256, 256, 256).case("GRU, additive attention, decoder 256"),
            "gru-512": lambda: PairWork(64, 20, 256, 256, 512).case("GRU, additive attention, decoder 512"),
        }
    sizes = {"vocab_size": 50304, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
    return {
        "gpt2": lambda: TextWork(32, 1024, sizes, text(50257)).case("GPT-2 124M"),
        "gpt2-64": lambda: TextWork(64, 1024, sizes, text(50257)).case("GPT-2 124M"),
        "vit": vit_case,
        "transformer": lambda: PairWork(128, 32, 512, layers=6).case("Transformer base"),
        "gru": lambda: PairWork(128, 32, 512, 512, 512).case("GRU, additive attention"),
        "elmo": elmo_case,
    }


def measure(case: Case, rounds: int, calls: int) -> None:
    error = case.error()
    if not error <= case.max_error:
        tell("training", case.title, wrong_result=f"our loss is off by {error:.1e} of it: no speed is reported")
        return
    updates: dict[str, Update] = {}
    memory = {}
    for name, make in case.contenders.items():
        before = _allocated()
        try:
            torch.manual_seed(0)
            updates[name] = make()
            for _ in range(5):
                updates[name]()
        except ModuleNotFoundError as missing:
            updates.pop(name, None)
            tell("training", case.title, left_out=f"{name}: {missing}")
            continue
        memory[name] = round((_peak() - before) / 1e9, 1)
    seconds = in_turns(updates, rounds, calls)
    ratios = {
        name: [theirs / own for theirs, own in zip(one, seconds["qkv"], strict=True)]
        for name, one in seconds.items()
        if name != "qkv"
    }
    speeds = {name: case.items / statistics.median(one) for name, one in seconds.items()}
    utilization = {name: round(case.operations * speed / 755e12, 3) for name, speed in speeds.items()}
    tell(
        "training",
        case.title,
        unit=case.unit,
        speed={name: round(speed) for name, speed in speeds.items()},
        ours_over={name: round(statistics.median(one), 2) for name, one in ratios.items()},
        ours_over_range={name: [round(min(one), 2), round(max(one), 2)] for name, one in ratios.items()},
        **({"peak_gb": memory} if GPU else {}),
        **({"mfu_of_755_tflops": utilization} if GPU and case.operations else {}),
        loss_off_by=f"{error:.1e}",
    )


def in_turns(updates: dict[str, Update], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds per update of each contender in each round, in another order in each."""
    names = list(updates)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            taken[name].append(_seconds(updates[name], calls))
    return taken


def _seconds(update: Update, calls: int) -> float:
    _synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        update()
    _synchronize()
    return (time.perf_counter() - begin) / calls


def _synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


def _allocated() -> int:
    """Bytes in use; also resets the peak."""
    if not GPU:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if GPU else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=5, help="updates per turn")
    parser.add_argument("--data", type=Path, help="token ids for GPT-2, as uint16")
    parser.add_argument("--peers", type=Path, default=Path(".peers"))
    options = parser.parse_args()
    sys.path[:0] = [str(options.peers / name) for name in ("nanoGPT", "joeynmt", "onmt")]
    torch.set_float32_matmul_precision("high")
    machine = torch.cuda.get_device_name() if GPU else f"{torch.get_num_threads()} threads"
    tell("machine", machine, torch=torch.__version__)
    known = cases(options.data)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown case {unknown[0]}: choose from {', '.join(known)}")
    for name in options.names or known:
        measure(known[name](), options.rounds, options.calls)


if __name__ == "__main__":
    main()

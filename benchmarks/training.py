"""Training speed of a Bahdanau GRU compared with JoeyNMT and OpenNMT-py: interleaved full updates in one run.

    python -m benchmarks.training                 on the GPU if there is one, else on the CPU
    python -m benchmarks.training --rounds 9      more rounds; ratios are taken inside a round, then their median
    python -m benchmarks.training --peers FOLDER  where joeynmt/ and onmt/ lie [.peers]

An update is the forward pass, cross-entropy with label smoothing, the backward pass, clipping and Adam, at the same
sizes for all, with the loss and the optimizer that each trains with; "joeynmt, helped" has PyTorch's loss and its fused
Adam instead of its own. The peers' sources (JoeyNMT 2.3.0, OpenNMT-py 3.5.1) are looked for, not brought along: unpack
`pip download --no-deps joeynmt==2.3.0` into .peers/joeynmt, OpenNMT-py==3.5.1 into .peers/onmt; one that is missing is
left out and said so. Speeds are printed only if our losses over a few updates are those of the formula in float64.
"""

import argparse
import copy
import importlib
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import GPU, tell
from qkv.config import Term
from qkv.datasets.batching import IGNORE, PairBatch
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.nn.losses import mean_cross_entropy
from qkv.runtime.device import autocast
from qkv.tasks.train_config import TrainConfig
from qkv.tokenizers.trained import BEGIN, END, PAD, SPECIAL
from qkv.training.loop import adamw
from qkv.training.step import CudaGraphTrainStep, TrainStep

SMOOTHING, CLIP, RATE = 0.1, 1.0, 1e-3
CHECKED_UPDATES = 3
MOST_LOSS_ERROR = {"float32": 1e-5, "bfloat16": 2e-3}  # of the loss
Update = Callable[[], Tensor]  # makes one update, and gives the loss before it


@dataclass(frozen=True)
class Work:
    """The workload, identical for all contenders."""

    batch: int
    length: int
    embedding: int
    encoder: int  # in each direction
    decoder: int
    device: torch.device
    precision: str
    vocabulary: int = 8000
    dropout: float = 0.1

    @property
    def tokens(self) -> int:
        """Target tokens in an update."""
        return self.batch * self.length

    def data(self) -> PairBatch:
        """Random sentences of equal length, so that padding does not penalize the peers."""
        generator = torch.Generator().manual_seed(0)

        def words(length: int) -> Tensor:
            shape = (self.batch, length)
            return torch.randint(len(SPECIAL), self.vocabulary, shape, generator=generator)

        source, target = words(self.length), words(self.length - 1)
        edge = torch.ones(self.batch, 1, dtype=torch.long)
        lengths = torch.full((self.batch,), self.length)
        batch = PairBatch(
            source, lengths, torch.cat((BEGIN * edge, target), 1), torch.cat((target, END * edge), 1), self.tokens
        )
        return batch.to(self.device)

    def __str__(self) -> str:
        return (
            f"GRU, additive attention, encoder 2 x {self.encoder}, decoder {self.decoder}, embedding {self.embedding}, "
            f"batch {self.batch} x {self.length}, {self.precision} on {self.device.type}"
        )


CPU = torch.device("cpu")
ON_CPU = (Work(64, 20, 256, 256, 256, CPU, "float32"), Work(64, 20, 256, 256, 512, CPU, "float32"))
ON_GPU = (Work(128, 32, 512, 512, 512, torch.device("cuda"), "bfloat16"),)


# ----------------------------------------------------------------------------------------------------------- ours


def our_model(work: Work) -> RNNSeq2Seq:
    config = RNNSeq2SeqConfig(
        source_vocab_size=work.vocabulary,
        target_vocab_size=work.vocabulary,
        embedding_dim=work.embedding,
        hidden_dim=work.decoder,
        encoder=Term("encoder", "rnn", {"dim": 2 * work.encoder}),
        dropout=work.dropout,
        context_dropout=0.0,  # the peers drop no states of a one-layer encoder either
        max_length=work.length + 1,
    )
    return RNNSeq2Seq(config).to(work.device).train()


def our_step(model: RNNSeq2Seq, batch: PairBatch, precision: str) -> Update:
    """An update as in qkv's trainer, including the loss readback."""
    optimizer = adamw(model, TrainConfig(lr=RATE, weight_decay=0.0))

    def loss_of(one: PairBatch) -> Tensor:
        logits = model(one.source, one.target_in, one.source_lengths)
        return mean_cross_entropy(logits, one.target_out, IGNORE, SMOOTHING, consume=True)

    passes = (CudaGraphTrainStep if batch.source.is_cuda else TrainStep)(model, loss_of, precision, CLIP)

    def update() -> Tensor:
        loss, norm = torch.stack(list(passes(batch))).cpu()
        assert norm.isfinite()
        optimizer.step()
        return loss

    return update


def ours(work: Work) -> Update:
    torch.manual_seed(0)
    return our_step(our_model(work), work.data(), work.precision)


def _update(
    loss_of: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    precision: str,
) -> Update:
    def update() -> Tensor:
        with autocast(device, precision):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return update


def wrong_by(work: Work) -> float:
    """Deviation of our losses from a reference over a few updates from the same weights, without dropout.

    The formula takes one step of the decoder at a time, in float64, and writes the loss out:
    -sum_t [(1 - e) log p(y_t) + e / V sum_v log p(v)] / T. A wrong gradient, clip or update shows in the second loss.
    """
    torch.manual_seed(0)
    model = our_model(replace(work, dropout=0.0))
    exact = copy.deepcopy(model).double()
    batch = work.data()
    step = our_step(model, batch, work.precision)
    parameters = list(exact.parameters())
    optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.98))
    by_formula = _update(lambda: _formula(exact, batch), parameters, optimizer, work.device, "float32")
    return max(abs(step().item() / by_formula().item() - 1) for _ in range(CHECKED_UPDATES))


def _formula(model: RNNSeq2Seq, batch: PairBatch) -> Tensor:
    state = model.init_state(model.encode(batch.source, batch.source_lengths))
    total = torch.zeros((), dtype=torch.float64, device=batch.source.device)
    for token, wanted in zip(batch.target_in.unbind(1), batch.target_out.unbind(1), strict=True):
        logits, state = model.step(token, state)
        log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
        total = total - ((1 - SMOOTHING) * log_p.gather(1, wanted[:, None])[:, 0] + SMOOTHING * log_p.mean(-1)).sum()
    return total / batch.tokens


# ---------------------------------------------------------------------------------------------------------- peers


def joeynmt(work: Work) -> Update:
    """JoeyNMT's RecurrentEncoder and RecurrentDecoder, its loss, and Adam as it calls it."""
    batch, model, logits = _joeynmt_model(work)
    own = _peer("joeynmt", "loss").XentLoss(pad_index=PAD, smoothing=SMOOTHING)

    def loss_of() -> Tensor:
        return own(logits().log_softmax(dim=-1), trg=batch.target_out) / batch.tokens

    return _peer_update(work, model, loss_of, fused=False)


def joeynmt_helped(work: Work) -> Update:
    """The same with faster PyTorch settings."""
    batch, model, logits = _joeynmt_model(work)
    return _peer_update(work, model, partial(_smoothed, logits, batch), fused=True)


def _joeynmt_model(work: Work) -> tuple[PairBatch, nn.Module, Callable[[], Tensor]]:
    encoders, decoders = _peer("joeynmt", "encoders"), _peer("joeynmt", "decoders")
    batch = work.data()
    sizes = {"rnn_type": "gru", "emb_size": work.embedding, "num_layers": 1, "dropout": work.dropout}
    encoder = encoders.RecurrentEncoder(hidden_size=work.encoder, bidirectional=True, **sizes)
    decoder = decoders.RecurrentDecoder(
        hidden_size=work.decoder, encoder=encoder, attention="bahdanau", vocab_size=work.vocabulary,
        init_hidden="bridge", input_feeding=True, freeze=False, hidden_dropout=work.dropout, **sizes,
    )  # fmt: skip
    embeddings = [nn.Embedding(work.vocabulary, work.embedding) for _ in range(2)]
    model = nn.ModuleList([encoder, decoder, *embeddings]).to(work.device).train()
    mask = torch.ones(work.batch, 1, work.length, dtype=torch.bool, device=work.device)

    def logits() -> Tensor:
        read, last, *_ = encoder(embeddings[0](batch.source), batch.source_lengths, mask)
        said = decoder(
            trg_embed=embeddings[1](batch.target_in), encoder_output=read, encoder_hidden=last, src_mask=mask,
            unroll_steps=work.length, hidden=None, trg_mask=mask,
        )  # fmt: skip
        return said[0]

    return batch, model, logits


def opennmt(work: Work) -> Update:
    """OpenNMT-py's RNNEncoder and InputFeedRNNDecoder, whose decoder is as wide as both directions together."""
    embeddings = _peer("onmt", "modules.embeddings").Embeddings
    encoder_class = _peer("onmt", "encoders.rnn_encoder").RNNEncoder
    decoder_class = _peer("onmt", "decoders.decoder").InputFeedRNNDecoder
    batch, width = work.data(), 2 * work.encoder
    words = [embeddings(work.embedding, work.vocabulary, PAD, dropout=work.dropout) for _ in range(2)]
    encoder = encoder_class("GRU", True, 1, width, work.dropout, words[0], use_bridge=True)
    decoder = decoder_class("GRU", True, 1, width, attn_type="mlp", dropout=work.dropout, embeddings=words[1])
    generator = nn.Linear(width, work.vocabulary)
    model = nn.ModuleList([encoder, decoder, generator]).to(work.device).train()
    for parameter in model.parameters():  # its embeddings are made without values; its trainer fills them so
        nn.init.uniform_(parameter, -0.1, 0.1)

    def logits() -> Tensor:
        read, last, lengths = encoder(batch.source[:, :, None], batch.source_lengths)
        decoder.init_state(batch.source[:, :, None], read, last)
        said, _ = decoder(batch.target_in[:, :, None], read, src_len=lengths)
        return generator(said)

    return _peer_update(work, model, partial(_smoothed, logits, batch), fused=False)


def no_attention(work: Work) -> Update:
    """Upper bound: the same recurrences in one PyTorch (cuDNN) call each, without attention."""
    batch = work.data()
    source, target = (nn.Embedding(work.vocabulary, work.embedding) for _ in range(2))
    encoder = nn.GRU(work.embedding, work.encoder, bidirectional=True, batch_first=True)
    decoder = nn.GRU(work.embedding, work.decoder, batch_first=True)
    bridge, readout = nn.Linear(2 * work.encoder, work.decoder), nn.Linear(work.decoder, work.vocabulary)
    model = nn.ModuleList([source, target, encoder, decoder, bridge, readout]).to(work.device).train()

    def logits() -> Tensor:
        read, _ = encoder(source(batch.source))
        return readout(decoder(target(batch.target_in))[0] + bridge(read))  # so that all of it has a gradient

    return _peer_update(work, model, partial(_smoothed, logits, batch), fused=True)


def _smoothed(logits: Callable[[], Tensor], batch: PairBatch) -> Tensor:
    said = logits().flatten(0, 1).float()
    return F.cross_entropy(said, batch.target_out.flatten(), label_smoothing=SMOOTHING)


def _peer_update(work: Work, model: nn.Module, loss_of: Callable[[], Tensor], *, fused: bool) -> Update:
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.98), fused=fused)
    return _update(loss_of, parameters, optimizer, work.device, work.precision)


def _peer(package: str, module: str) -> types.ModuleType:
    """Import a module of a peer, stubbing missing dependencies for data and plots."""
    if package == "onmt" and "onmt" not in sys.modules:  # its own __init__ would bring the data loaders in
        bare = types.ModuleType("onmt")
        bare.__path__ = [str(Path(root) / "onmt") for root in sys.path if (Path(root) / "onmt").is_dir()]
        sys.modules["onmt"] = bare
    while True:
        try:
            return importlib.import_module(f"{package}.{module}")
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.partition(".")[0] == package:
                raise
            sys.modules[missing.name] = MagicMock()


# --------------------------------------------------------------------------------------------------------- timing


def contenders(work: Work) -> dict[str, Update]:
    """All contenders available on this machine."""
    makers = {"qkv": ours, "joeynmt": joeynmt, "joeynmt, helped": joeynmt_helped, "no attention": no_attention}
    if work.decoder == 2 * work.encoder:  # the only width that OpenNMT-py offers
        makers["opennmt-py"] = opennmt
    found: dict[str, Update] = {}
    for name, make in makers.items():
        try:
            torch.manual_seed(0)
            found[name] = make(work)
            loss = found[name]().item()
        except ModuleNotFoundError as missing:
            found.pop(name, None)
            tell("training", str(work), left_out=f"{name}: {missing}")
            continue
        tell("training", str(work), who=name, first_loss=round(loss, 3))
    return found


def in_turns(updates: dict[str, Update], work: Work, rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds per update of each contender in each round, interleaved with a matmul that probes the machine."""
    probe = torch.randn(2048, 2048, device=work.device)
    turns: dict[str, Callable[[], object]] = {"probe": lambda: probe @ probe, **updates}
    for turn in turns.values():
        for _ in range(3):
            turn()
    names = list(updates)
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        first = number % len(names)
        for name in ("probe", *names[first:], *names[:first]):
            taken[name].append(_seconds(turns[name], calls, work.device))
    return taken


def _seconds(turn: Callable[[], object], calls: int, device: torch.device) -> float:
    _settle(device)
    begin = time.perf_counter()
    for _ in range(calls):
        turn()
    _settle(device)
    return (time.perf_counter() - begin) / calls


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(work: Work, rounds: int, calls: int) -> None:
    error = wrong_by(work)
    if not error <= MOST_LOSS_ERROR[work.precision]:
        tell("training", str(work), wrong_result=f"our loss is off by {error:.1e} of it: no speed is reported")
        return
    updates = contenders(work)
    taken = in_turns(updates, work, rounds, calls)
    flops = [2 * 2048**3 / seconds for seconds in taken.pop("probe")]
    ratios = {
        name: [theirs / own for theirs, own in zip(seconds, taken["qkv"], strict=True)]
        for name, seconds in taken.items()
        if name != "qkv"
    }
    tell(
        "training",
        str(work),
        target_tokens_per_second={name: round(work.tokens / statistics.median(one)) for name, one in taken.items()},
        ours_over={name: round(statistics.median(one), 2) for name, one in ratios.items()},
        ours_over_range={name: [round(min(one), 2), round(max(one), 2)] for name, one in ratios.items()},
        loss_off_by=f"{error:.1e}",
        probe_gflops=[round(one / 1e9) for one in flops],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3, help="updates per turn")
    parser.add_argument("--peers", type=Path, default=Path(".peers"))
    options = parser.parse_args()
    sys.path[:0] = [str(options.peers / name) for name in ("joeynmt", "onmt")]
    torch.set_float32_matmul_precision("high")
    machine = torch.cuda.get_device_name() if GPU else f"{torch.get_num_threads()} threads"
    tell("machine", machine, torch=torch.__version__)
    for work in ON_GPU if GPU else ON_CPU:
        measure(work, options.rounds, options.calls)


if __name__ == "__main__":
    main()

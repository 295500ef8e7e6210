"""The peers of benchmarks.training: nanoGPT, transformers, JoeyNMT and OpenNMT-py, each with its own model and loss.

Their sources are looked for, not brought along: nanoGPT's model.py in .peers/nanoGPT; `pip download --no-deps` of
joeynmt==2.3.0 and OpenNMT-py==3.5.1 unpacked into .peers/joeynmt and .peers/onmt.
"""

import importlib
import itertools
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.datasets.batching import PairBatch
from qkv.runtime.device import autocast
from qkv.tokenizers.trained import PAD

SMOOTHING, CLIP, RATE = 0.1, 1.0, 1e-3
Update = Callable[[], Tensor]  # makes one update, and returns the loss before it


def plain_update(
    loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer, device: torch.device, precision: str
) -> Update:
    """A training step as most people write it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def update() -> Tensor:
        with autocast(device, precision):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return update


def peer(package: str, module: str) -> Any:
    """Import a module of a peer, stubbing missing dependencies for data and plots."""
    if package == "onmt" and "onmt" not in sys.modules:  # its own __init__ would bring the data loaders in
        bare = types.ModuleType("onmt")
        bare.__path__ = [str(Path(root) / "onmt") for root in sys.path if (Path(root) / "onmt").is_dir()]
        sys.modules["onmt"] = bare
    while True:
        try:
            return importlib.import_module(f"{package}.{module}" if module else package)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.partition(".")[0] == package:
                raise
            sys.modules[missing.name] = MagicMock()


# --------------------------------------------------------------------------------------------------------- nanoGPT


def nano_gpt(sizes: dict[str, int]) -> Any:
    """nanoGPT's model, with biases as in GPT-2 and without dropout."""
    module = peer("model", "")
    return module.GPT(module.GPTConfig(**sizes, dropout=0.0, bias=True))


def nano_gpt_update(
    model: Any,
    batch: Callable[[], tuple[Tensor, Tensor]],
    *,
    compiled: bool,
    precision: str,
    rate: float,
    warm_up: int = 1,
) -> Update:
    device = next(model.parameters()).device
    optimizer = model.configure_optimizers(0.1, rate, (0.9, 0.95), device.type)
    forward = torch.compile(model) if compiled else model
    update = plain_update(lambda: forward(*batch())[1], optimizer, device, precision)
    updates = itertools.count(1)

    def run() -> Tensor:
        current = rate * min(1.0, next(updates) / warm_up)
        for group in optimizer.param_groups:
            group["lr"] = current
        return update()

    return run


# ---------------------------------------------------------------------------------------------------- transformers


def transformers_vit(images: Tensor, labels: Tensor) -> Update:
    """ViT-B/16 of transformers under torch.compile."""
    transformers = importlib.import_module("transformers")
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)).to(images.device).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    return plain_update(
        lambda: F.cross_entropy(compiled(pixel_values=images).logits.float(), labels),
        optimizer,
        images.device,
        "bfloat16",
    )


def transformers_marian(work: Any) -> Update:
    """Marian of transformers, with PyTorch's loss and its fused Adam."""
    transformers = importlib.import_module("transformers")
    batch = work.data()
    config = transformers.MarianConfig(
        vocab_size=work.vocabulary, d_model=work.embedding, encoder_layers=work.layers, decoder_layers=work.layers,
        encoder_attention_heads=work.heads, decoder_attention_heads=work.heads, encoder_ffn_dim=work.ffn,
        decoder_ffn_dim=work.ffn, dropout=work.dropout, activation_function="relu", pad_token_id=PAD,
        decoder_start_token_id=PAD, max_position_embeddings=work.length, use_cache=False,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).to(work.device).train()
    mask = torch.ones_like(batch.source)

    def logits() -> Tensor:
        return model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target_in).logits

    return _adam(work, model, partial(_smoothed, logits, batch), fused=True)


# --------------------------------------------------------------------------------------------------------- JoeyNMT


def joeynmt_rnn(work: Any, *, helped: bool = False) -> Update:
    """JoeyNMT's RecurrentEncoder and RecurrentDecoder; `helped`: with PyTorch's loss and its fused Adam."""
    encoders, decoders = peer("joeynmt", "encoders"), peer("joeynmt", "decoders")
    sizes = {"rnn_type": "gru", "emb_size": work.embedding, "num_layers": 1, "dropout": work.dropout}
    encoder = encoders.RecurrentEncoder(hidden_size=work.encoder, bidirectional=True, **sizes)
    decoder = decoders.RecurrentDecoder(
        hidden_size=work.decoder, encoder=encoder, attention="bahdanau", vocab_size=work.vocabulary,
        init_hidden="bridge", input_feeding=True, freeze=False, hidden_dropout=work.dropout, **sizes,
    )  # fmt: skip
    return _joeynmt(work, encoder, decoder, helped)


def joeynmt_transformer(work: Any, *, helped: bool = False) -> Update:
    """JoeyNMT's TransformerEncoder and TransformerDecoder."""
    encoders, decoders = peer("joeynmt", "encoders"), peer("joeynmt", "decoders")
    sizes = {
        "hidden_size": work.embedding, "ff_size": work.ffn, "num_layers": work.layers, "num_heads": work.heads,
        "dropout": work.dropout, "emb_dropout": work.dropout, "layer_norm": "pre",
    }  # fmt: skip
    encoder = encoders.TransformerEncoder(**sizes)
    decoder = decoders.TransformerDecoder(vocab_size=work.vocabulary, **sizes)
    return _joeynmt(work, encoder, decoder, helped)


def _joeynmt(work: Any, encoder: Any, decoder: Any, helped: bool) -> Update:
    batch: PairBatch = work.data()
    embeddings = [nn.Embedding(work.vocabulary, work.embedding) for _ in range(2)]
    model = nn.ModuleList([encoder, decoder, *embeddings]).to(work.device).train()
    mask = torch.ones(work.batch, 1, work.length, dtype=torch.bool, device=work.device)
    own_loss = peer("joeynmt", "loss").XentLoss(pad_index=PAD, smoothing=SMOOTHING)

    def logits() -> Tensor:
        encoded, *last = encoder(embeddings[0](batch.source), batch.source_lengths, mask)
        return decoder(
            trg_embed=embeddings[1](batch.target_in), encoder_output=encoded, encoder_hidden=last[0] if last else None,
            src_mask=mask, unroll_steps=work.length, hidden=None, trg_mask=mask,
        )[0]  # fmt: skip

    def loss_of() -> Tensor:
        if helped:
            return _smoothed(logits, batch)
        return own_loss(logits().log_softmax(dim=-1), trg=batch.target_out) / batch.tokens

    return _adam(work, model, loss_of, fused=helped)


# ------------------------------------------------------------------------------------------------------ OpenNMT-py


def opennmt_rnn(work: Any) -> Update:
    """OpenNMT-py's RNNEncoder and InputFeedRNNDecoder, whose decoder is as wide as both directions together."""
    embeddings = peer("onmt", "modules.embeddings").Embeddings
    encoder_class = peer("onmt", "encoders.rnn_encoder").RNNEncoder
    decoder_class = peer("onmt", "decoders.decoder").InputFeedRNNDecoder
    batch, width = work.data(), 2 * work.encoder
    words = [embeddings(work.embedding, work.vocabulary, PAD, dropout=work.dropout) for _ in range(2)]
    encoder = encoder_class("GRU", True, 1, width, work.dropout, words[0], use_bridge=True)
    decoder = decoder_class("GRU", True, 1, width, attn_type="mlp", dropout=work.dropout, embeddings=words[1])
    generator = nn.Linear(width, work.vocabulary)
    model = nn.ModuleList([encoder, decoder, generator]).to(work.device).train()
    for parameter in model.parameters():  # its embeddings are made without values; its trainer fills them so
        nn.init.uniform_(parameter, -0.1, 0.1)

    def logits() -> Tensor:
        encoded, last, lengths = encoder(batch.source[:, :, None], batch.source_lengths)
        decoder.init_state(batch.source[:, :, None], encoded, last)
        output, _ = decoder(batch.target_in[:, :, None], encoded, src_len=lengths)
        return generator(output)

    return _adam(work, model, partial(_smoothed, logits, batch), fused=False)


# --------------------------------------------------------------------------------------------------------- PyTorch


def torch_rnn_without_attention(work: Any) -> Update:
    """Upper bound: the same recurrences in one PyTorch (cuDNN) call each, without attention."""
    batch = work.data()
    source, target = (nn.Embedding(work.vocabulary, work.embedding) for _ in range(2))
    encoder = nn.GRU(work.embedding, work.encoder, bidirectional=True, batch_first=True)
    decoder = nn.GRU(work.embedding, work.decoder, batch_first=True)
    bridge, readout = nn.Linear(2 * work.encoder, work.decoder), nn.Linear(work.decoder, work.vocabulary)
    model = nn.ModuleList([source, target, encoder, decoder, bridge, readout]).to(work.device).train()

    def logits() -> Tensor:
        encoded, _ = encoder(source(batch.source))
        return readout(decoder(target(batch.target_in))[0] + bridge(encoded))  # so that all of it has a gradient

    return _adam(work, model, partial(_smoothed, logits, batch), fused=True)


def torch_rnn(work: Any) -> Update:
    """The same recurrences and additive attention with input feeding, as a loop over the steps of the decoder."""
    batch, width = work.data(), 2 * work.encoder
    source, target = (nn.Embedding(work.vocabulary, work.embedding) for _ in range(2))
    encoder = nn.GRU(work.embedding, work.encoder, bidirectional=True, batch_first=True)
    cell = nn.GRUCell(work.embedding + work.decoder, work.decoder)
    key, query = nn.Linear(width, work.decoder, bias=False), nn.Linear(work.decoder, work.decoder)
    score, bridge = nn.Linear(work.decoder, 1, bias=False), nn.Linear(width, work.decoder)
    combine, readout = nn.Linear(work.decoder + width, work.decoder), nn.Linear(work.decoder, work.vocabulary)
    layers = [source, target, encoder, cell, key, query, score, bridge, combine, readout]
    model = nn.ModuleList(layers).to(work.device).train()

    def logits() -> Tensor:
        memory, last = encoder(F.dropout(source(batch.source), work.dropout))
        state = bridge(torch.cat((last[0], last[1]), dim=-1)).tanh()
        fed, keys, outputs = torch.zeros_like(state), key(memory), []
        for embedded in F.dropout(target(batch.target_in), work.dropout).unbind(1):
            state = cell(torch.cat((embedded, fed), dim=-1), state)
            weights = score((keys + query(state)[:, None]).tanh()).softmax(dim=1)
            context = (weights.transpose(1, 2) @ memory)[:, 0]
            fed = combine(torch.cat((state, context), dim=-1)).tanh()
            outputs.append(fed)
        return readout(F.dropout(torch.stack(outputs, dim=1), work.dropout))

    return _adam(work, model, partial(_smoothed, logits, batch), fused=True)


def torch_transformer(work: Any, *, compiled: bool = False) -> Update:
    """nn.Transformer with embeddings and an output layer."""
    batch = work.data()
    body = nn.Transformer(
        work.embedding, work.heads, work.layers, work.layers, work.ffn, work.dropout, batch_first=True, norm_first=True
    )
    embeddings = [nn.Embedding(work.vocabulary, work.embedding) for _ in range(2)]
    readout = nn.Linear(work.embedding, work.vocabulary)
    model = nn.ModuleList([body, readout, *embeddings]).to(work.device).train()
    causal = nn.Transformer.generate_square_subsequent_mask(work.length, device=work.device)
    forward = torch.compile(body) if compiled else body

    def logits() -> Tensor:
        source, target = embeddings[0](batch.source), embeddings[1](batch.target_in)
        return readout(forward(source, target, tgt_mask=causal, tgt_is_causal=True))

    return _adam(work, model, partial(_smoothed, logits, batch), fused=True)


def _smoothed(logits: Callable[[], Tensor], batch: PairBatch) -> Tensor:
    return F.cross_entropy(logits().flatten(0, 1).float(), batch.target_out.flatten(), label_smoothing=SMOOTHING)


def _adam(work: Any, model: nn.Module, loss_of: Callable[[], Tensor], *, fused: bool) -> Update:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=fused)
    return plain_update(loss_of, optimizer, work.device, work.precision)

"""Claim 13: a convolutional encoder is parallel, its decoder generates sequentially."""

from dataclasses import replace
from functools import partial

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.cost import Calls, longest_path, seconds, threads
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Exponent, Ratio
from qkv.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from qkv.registry import register

VOCAB_SIZE, LONG = 100, 64
LENGTHS = {"small": (8, 16, 32, 64), "full": (8, 16, 32, 64, 128, 256)}


@register("claim", "convolutional-encoder-parallel")
class ConvolutionalEncoderParallel(SampledClaim):
    """Sequential operations of encoding, training and generating with a convolutional encoder-decoder, by length."""

    number = 13
    title = "A convolutional encoder is parallel, but generation remains sequential"
    statement = (
        "Replacing the RNN encoder by convolutions makes encoding parallel. The decoder is still autoregressive: it "
        "generates each word after the one before."
    )
    notes = (Note("000", "Convolutional Encoder-Decoder"),)
    equation = (
        "encoder: z = V u^M,   u^l = conv(u^{l-1}) + u^{l-1}: M layers, for any length n\n"
        "decoder: y_{t+1} = argmax p(y | y_1 ... y_t, z): n steps"
    )
    source = (
        "src/qkv/models/conv_seq2seq.py::ConvSeq2Seq.encode",
        "src/qkv/nn/interfaces.py::ParallelDecoder",
        "src/qkv/experiments/claims/cost.py::longest_path",
    )
    hypothesis = (
        "The longest chain of dependent operations does not grow with the length in the encoder and in training with "
        "given target words (exponent within 0.05), and is proportional to it in generation (0.9 to 1.1). Generating "
        "64 words takes at least 5 times as long as encoding 64 words."
    )
    criteria = (
        Exponent("sequential steps: encoder", low=-0.05, high=0.05),
        Exponent("sequential steps: training of the decoder", low=-0.05, high=0.05),
        Exponent("sequential steps: generation", low=0.9, high=1.1),
        Ratio("time of 64 words: generation", "time of 64 words: encoder", low=5.0),
    )
    figure = (
        Panel(
            "Longest chain of operations", "operations",
            tuple(f"sequential steps: {part}" for part in ("encoder", "training of the decoder", "generation")),
            x_label="words", log_x=True, log_y=True,
        ),
        Panel(
            "Time", "seconds", ("time by length: encoder", "time by length: generation"),
            x_label="words", log_x=True, log_y=True,
        ),
    )  # fmt: skip
    limits = (
        "On a CPU the time is that of one thread, which computes even independent operations one after the other. "
        "Non-autoregressive decoders, which generate all words at once, are outside of the claim."
    )
    amendments = (
        "The first run counted some steps twice, timed two threads, and was mixed: with two threads the ratio of "
        "times was 2.0, with one it is 14."
    )

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        lengths = LENGTHS[scale]
        config = ConvSeq2SeqConfig(
            source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, dropout=0.0, max_length=lengths[-1]
        )
        model = ConvSeq2Seq(config).to(device)
        steps: dict[str, dict[int, float]] = {"encoder": {}, "training of the decoder": {}, "generation": {}}
        calls: Calls = {}
        for length in lengths:
            source = torch.randint(VOCAB_SIZE, (1, length), device=device)
            memory = model.encode(source)
            steps["encoder"][length] = longest_path(memory.values)
            target = model.decode(source, model.encode(source))
            steps["training of the decoder"][length] = longest_path(target)
            steps["generation"][length] = generate(model, source, count_steps=True)
            calls["encoder", length] = partial(model.encode, source)
            calls["generation", length] = partial(generate, model, source)
        with torch.no_grad(), threads(1):
            times = seconds(calls, device, rounds=9)
        curves = {part: {n: times[part, n] for n in lengths} for part in ("encoder", "generation")}
        series = {f"sequential steps: {part}": curve for part, curve in steps.items()}
        series |= {f"time by length: {part}": curve for part, curve in curves.items()}
        return Sample({f"time of {LONG} words: {part}": curve[LONG] for part, curve in curves.items()}, series)


def generate(model: ConvSeq2Seq, source: torch.Tensor, *, count_steps: bool = False) -> int:
    """Generate as many words as the source has; return the number of operations that depend on each other.

    The most likely word of a step is the input of the next one, so that their chains of operations add up.
    """
    with torch.no_grad():
        state = model.init_state(model.encode(source))
    token, steps = source[:, :1], 0
    for _ in range(source.shape[1]):
        logits, state = model.forward_from(token, state)
        if count_steps:
            steps += longest_path(logits)
            state = replace(state, past=tuple(past.detach() for past in state.past))  # counted already
        token = logits[:, -1:].argmax(dim=-1)
    return steps

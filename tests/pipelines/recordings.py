"""Small speech recognizers with random weights, and WAV files of noise."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.whisper import Whisper, WhisperConfig
from qkv.tokenizers import Tokenizer
from tests.tasks.settings import tokenizer_of

LETTERS = "abcdefghij "


def tokenizer() -> Tokenizer:
    return tokenizer_of([LETTERS], "char")


def whisper(**changes: Any) -> Whisper:
    """A model with windows of one second."""
    sizes = {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 24, "mels": 8, "positions": 50}
    torch.manual_seed(0)
    model = Whisper(WhisperConfig(vocab_size=20, **sizes, max_length=24, **changes)).eval()
    return with_large_weights(model)


def with_large_weights(model: Any) -> Any:
    """Draw the weights so large that outputs depend on inputs."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def las(**changes: Any) -> RNNSeq2Seq:
    """Listen, Attend and Spell with windows of 0.8 seconds."""
    torch.manual_seed(0)
    encoder = {"name": "pyramid", "layers": 3, "mels": 8, "rate": 8000}
    options = {"target_vocab_size": len(tokenizer()), "hidden_dim": 16, "embedding_dim": 8, "max_length": 80}
    model = RNNSeq2Seq(RNNSeq2SeqConfig(encoder=encoder, decoder="luong", **options, **changes)).eval()
    return with_large_weights(model)


def write_wav(
    path: Path, seconds: float, rate: int = 16000, seed: int = 0, quiet: tuple[float, float] = (0, 0)
) -> Path:
    """Write noise with changing loudness, silent between two times."""
    noise = np.random.default_rng(seed).standard_normal(int(seconds * rate))
    samples = 0.2 * noise * (1.2 + np.sin(np.arange(len(noise)) / 700))
    samples[int(quiet[0] * rate) : int(quiet[1] * rate)] = 0
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return path

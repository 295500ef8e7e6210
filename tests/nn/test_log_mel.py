"""Log-mel features against a loop in float64 and against transformers, and resampling against sines."""

import math

import numpy as np
import pytest
import torch

from qkv.errors import ShapeError
from qkv.nn.encoders.log_mel import LogMel, mel_filters, resample


def speech(samples: int, seed: int = 0) -> np.ndarray:
    """Noise with a changing envelope."""
    noise = np.random.default_rng(seed).standard_normal(samples)
    return (0.3 * noise * np.sin(np.arange(samples) / 700)).astype(np.float32)


def features_of(log_mel: LogMel, *waveforms: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
    padded, lengths = log_mel.pad([torch.from_numpy(waveform) for waveform in waveforms])
    return log_mel(padded, torch.tensor(lengths))


def slaney_hz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)


def loop(waveform: np.ndarray, mels: int, rate: int) -> np.ndarray:
    """The equations of the module, one frame and one filter at a time, for a waveform that ends in silence."""
    size, hop = rate // 40, rate // 100
    x = np.concatenate((waveform[size // 2 : 0 : -1], waveform, np.zeros(size))).astype(np.float64)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    low, high = 0.0, 1e4
    for _ in range(100):  # the mel of half the rate, by bisection
        low, high = ((low + high) / 2, high) if slaney_hz((low + high) / 2) < rate / 2 else (low, (low + high) / 2)
    edges = [slaney_hz(low * index / (mels + 1)) for index in range(mels + 2)]
    frames = []
    for start in range(0, len(waveform), hop):
        power = np.abs(np.fft.rfft(x[start : start + size] * window)) ** 2
        row = []
        for left, centre, right in zip(edges, edges[1:], edges[2:], strict=False):
            total = 0.0
            for number, value in enumerate(power):
                hz = number * rate / size
                weight = max(0.0, min((hz - left) / (centre - left), (right - hz) / (right - centre)))
                total += weight * 2 / (right - left) * value
            row.append(math.log10(max(total, 1e-10)))
        frames.append(row)
    logs = np.array(frames)
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


@pytest.mark.parametrize(("mels", "rate"), [(80, 16000), (12, 8000)])
def test_features_equal_a_loop_in_float64(mels, rate):
    waveform = np.concatenate((speech(rate // 20), np.zeros(rate // 40, dtype=np.float32)))
    found, lengths = features_of(LogMel(mels, rate), waveform)
    expected = loop(waveform, mels, rate)
    assert lengths.tolist() == [len(expected)]
    np.testing.assert_allclose(found[0, : len(expected)], expected, atol=1e-5)


@pytest.mark.parametrize("samples", [16000, 480_000, 77_777])
def test_features_of_a_window_equal_transformers(samples):
    transformers = pytest.importorskip("transformers")
    waveform = speech(samples)
    extractor = transformers.WhisperFeatureExtractor()
    expected = extractor(waveform, sampling_rate=16000, return_tensors="pt").input_features
    found, lengths = features_of(LogMel(frames=3000), waveform)
    assert lengths is None
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(mel_filters(80, 16000, 400).T, extractor.mel_filters, atol=1e-12)


@pytest.mark.parametrize("relative", [False, True])
def test_features_do_not_depend_on_the_batch(relative):
    log_mel = LogMel(10, 8000, relative=relative)
    waveforms = [speech(size, seed) for seed, size in enumerate((4000, 1234, 80, 1))]
    together, lengths = features_of(log_mel, *waveforms)
    assert lengths.tolist() == [50, 16, 1, 1] == [log_mel.count(len(waveform)) for waveform in waveforms]
    for row, waveform in enumerate(waveforms):
        alone, _ = features_of(log_mel, waveform)
        torch.testing.assert_close(alone[0, : lengths[row]], together[row, : lengths[row]])


def test_relative_features_do_not_depend_on_loudness():
    quiet, loud = (features_of(LogMel(10, relative=True), gain * speech(4000))[0] for gain in (0.01, 1.0))
    torch.testing.assert_close(quiet, loud, rtol=0, atol=1e-5)
    assert loud.max() == 1.0


def test_a_waveform_longer_than_a_window_raises():
    with pytest.raises(ShapeError, match="10 frames"):
        LogMel(frames=10).pad([torch.zeros(1601)])


@pytest.mark.parametrize(("rate", "new_rate"), [(8000, 16000), (44100, 16000), (16000, 8000), (22050, 16001)])
def test_resampling_keeps_a_sine(rate, new_rate):
    found = resample(torch.sin(2 * torch.pi * 440 * torch.arange(rate) / rate), rate, new_rate)
    expected = torch.sin(2 * torch.pi * 440 * torch.arange(len(found)) / new_rate)
    assert len(found) == new_rate
    torch.testing.assert_close(found[200:-200], expected[200:-200], rtol=0, atol=1e-3)


def test_resampling_removes_what_the_new_rate_cannot_represent():
    tone = torch.sin(2 * torch.pi * 6000 * torch.arange(16000) / 16000)
    assert resample(tone, 16000, 8000)[200:-200].abs().max() < 1e-2
    assert resample(tone, 16000, 16000) is tone

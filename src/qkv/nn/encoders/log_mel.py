"""Log-mel spectrograms of speech, and resampling.

S = |STFT(x)|^2                     Hann windows of 25 ms, one every 10 ms
M = log10(max(F S, 1e-10))          F: triangular filters, evenly spaced on Slaney's mel scale
(max(M, max M - 8) + 4) / 4         as in Whisper (Radford et al. 2023); relative: of M - max M
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional as F

from qkv.errors import ShapeError
from qkv.types import Float, Int, Tensor

WINDOWS_PER_SECOND, HOPS_PER_SECOND = 40, 100  # windows of 25 ms, one every 10 ms
FLOOR, RANGE = 1e-10, 8.0  # smallest power, and powers of ten below the largest that are kept
MEL_STEP, LOG_START, LOG_STEP = 200 / 3, 1000.0, math.log(6.4) / 27  # Slaney: linear below 1 kHz, logarithmic above
ZERO_CROSSINGS, ROLLOFF = 16, 0.95  # of the resampling filter, on each side; its cutoff as a fraction of Nyquist's
RESAMPLED_AT_ONCE = 2**14  # samples, to bound the memory of their neighbors


@dataclass(frozen=True)
class LogMel:
    """The input features of a speech model: `features, lengths = log_mel(waveforms, samples)`."""

    mels: int = 80
    rate: int = 16000  # samples per second
    frames: int | None = None  # every recording is padded to this length; None: to the longest
    relative: bool = False  # subtract the largest value of a recording, so that its loudness does not matter

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return self.rate // HOPS_PER_SECOND

    def count(self, samples: int) -> int:
        """Return the number of frames of a recording."""
        return -(-samples // self.hop)

    def pad(self, waveforms: Sequence[Float[Tensor, "_"]]) -> tuple[Float[Tensor, "batch longest"], list[int]]:
        """Return the waveforms as one tensor, and their lengths.

        Half a window of silence follows the longest, so that the frames of a recording do not depend on the batch.
        """
        lengths = [len(waveform) for waveform in waveforms]
        longest = max(lengths) + self.rate // WINDOWS_PER_SECOND // 2 if self.frames is None else self.frames * self.hop
        if max(lengths) > longest:
            raise ShapeError(
                f"a recording has {max(lengths):,} samples; at most {longest:,} fit into {self.frames} frames"
            )
        return torch.stack([F.pad(waveform, (0, longest - len(waveform))) for waveform in waveforms]), lengths

    def __call__(
        self, waveforms: Float[Tensor, "batch samples"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch frames mels"], Int[Tensor, "batch"] | None]:
        """Return the features of padded waveforms and the number of frames of each; None if all have `frames`."""
        window, filters = _constants(self.mels, self.rate, waveforms.device)
        with torch.autocast(waveforms.device.type, enabled=False):
            spectrum = torch.stft(waveforms.float(), len(window), self.hop, window=window, return_complex=True)
            power = filters @ (spectrum[..., :-1].abs() ** 2)
        log_power = power.clamp(min=FLOOR).log10()
        loudest = log_power.amax(dim=(1, 2), keepdim=True)
        log_power = torch.maximum(log_power, loudest - RANGE) - (loudest if self.relative else 0.0)
        features = ((log_power + 4.0) / 4.0).transpose(1, 2)
        return features, None if self.frames is not None else -(-lengths // self.hop)


@cache
def _constants(
    mels: int, rate: int, device: torch.device
) -> tuple[Float[Tensor, "window"], Float[Tensor, "mels bins"]]:
    """Return the Hann window and the mel filters on a device."""
    size = rate // WINDOWS_PER_SECOND
    with torch.inference_mode(False):  # they may be used in training later
        return torch.hann_window(size, device=device), mel_filters(mels, rate, size).float().to(device)


def mel_filters(mels: int, rate: int, window: int) -> Float[Tensor, "mels bins"]:
    """Return triangular filters with an area of one, from 0 Hz to half the sampling rate."""
    frequencies = torch.linspace(0, rate / 2, window // 2 + 1, dtype=torch.float64)
    highest = rate / 2
    top = LOG_START / MEL_STEP + math.log(highest / LOG_START) / LOG_STEP if highest > LOG_START else highest / MEL_STEP
    mel = torch.linspace(0, top, mels + 2, dtype=torch.float64)
    logarithmic = LOG_START * torch.exp(LOG_STEP * (mel - LOG_START / MEL_STEP))
    edges = torch.where(mel < LOG_START / MEL_STEP, mel * MEL_STEP, logarithmic)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - left) / (centre - left), (right - frequencies) / (right - centre)
    return torch.minimum(rising, falling).clamp(min=0) * 2 / (right - left)


def resample(waveform: Float[Tensor, "samples"], rate: int, new_rate: int) -> Float[Tensor, "resampled"]:
    """Return a waveform at another sampling rate, by interpolation with a windowed sinc function.

    y(t) = sum_n x_n h(t - n),   h(t) = c sinc(c t) cos^2(pi c t / 2z) for |c t| < z, with c the cutoff
    """
    if rate == new_rate:
        return waveform
    cutoff = ROLLOFF * min(1.0, new_rate / rate)
    reach = math.ceil(ZERO_CROSSINGS / cutoff)  # samples on each side
    padded = F.pad(waveform, (reach, reach + 1))
    taps = torch.arange(-reach, reach + 1)
    count = -(-len(waveform) * new_rate // rate)
    parts = []
    for begin in range(0, count, RESAMPLED_AT_ONCE):
        index = torch.arange(begin, min(begin + RESAMPLED_AT_ONCE, count))
        nearest = index * rate // new_rate  # in integers: a time in float32 would be wrong after minutes
        fraction = (index * rate % new_rate).double() / new_rate
        scaled = (cutoff * (fraction[:, None] - taps)).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS)
        weights = cutoff * torch.sinc(scaled) * torch.cos(math.pi * scaled / (2 * ZERO_CROSSINGS)) ** 2
        parts.append((padded[nearest[:, None] + taps + reach] * weights.to(padded.dtype)).sum(dim=1))
    return torch.cat(parts) if parts else waveform[:0]

"""Play a tune: additive synthesis of its notes, written as a WAV file.

    x(t) = envelope(t) sum_k 1/k sin(2 pi k f t),   f = 440 Hz * 2^((pitch - 69) / 12),   k = 1 ... 6

The envelope rises within 10 ms, decays exponentially, and falls to zero at the end of the note.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkv.datasets.formats.abc_notation import Note, Tune, parse_tune
from qkv.datasets.formats.audio import encode_wav
from qkv.errors import InputError

RATE = 22050  # samples per second
HARMONICS = 6
ATTACK, RELEASE = 0.01, 0.03  # seconds
DECAY = 3.0  # per second
PEAK = 0.8  # of the largest sample
MAX_SECONDS = 900

Samples = npt.NDArray[np.float32]


def synthesize(tune: Tune) -> Samples:
    """Return the samples of a tune, between -1 and 1."""
    if tune.duration > MAX_SECONDS:
        raise InputError(f"the tune takes {tune.duration:,.0f} seconds, at most {MAX_SECONDS} can be played")
    samples = np.zeros(round(tune.duration * RATE), dtype=np.float32)
    for note in tune.notes:
        begin, end = (round(float(at) * tune.seconds_per_whole_note * RATE) for at in _span(note))
        samples[begin:end] += _tone(frequency(note.pitch), end - begin)
    peak = np.abs(samples).max(initial=0.0)
    return samples * np.float32(PEAK / peak) if peak > 0 else samples


def play_abc(text: str, path: Path) -> Tune:
    """Write the sound of a tune in ABC notation as a WAV file, and return the tune."""
    tune = parse_tune(text)
    path.write_bytes(encode_wav(synthesize(tune), RATE))
    return tune


def frequency(pitch: int) -> float:
    """Return the frequency of a MIDI number in Hz."""
    return 440.0 * 2 ** ((pitch - 69) / 12)


def _span(note: Note) -> tuple[float, float]:
    return float(note.start), float(note.start + note.duration)


def _tone(hertz: float, length: int) -> Samples:
    time = np.arange(length, dtype=np.float32) / RATE
    harmonics = [k for k in range(1, HARMONICS + 1) if k * hertz < RATE / 2]
    sound = sum((np.sin(2 * np.pi * k * hertz * time) / k for k in harmonics), np.zeros(length, dtype=np.float32))
    rise = np.minimum(1.0, time / ATTACK)
    fall = np.minimum(1.0, (length / RATE - time) / RELEASE)
    return (sound * rise * fall * np.exp(-DECAY * time)).astype(np.float32)

"""Recordings of users, which are not trusted: arrays, and WAV files (PCM of 8 to 32 bits, floats of 32 or 64 bits).

A RIFF file is a list of chunks, each with a name of four characters and its size in bytes: "fmt " describes the
samples, "data" has them. Only the part that is asked for is read.
"""

import io
import os
import struct
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from qkv.errors import InputError
from qkv.runtime.files import open_regular

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # formats of samples; extensible: the format follows in a longer header
MIN_RATE, MAX_RATE = 4000, 192_000  # samples per second
MAX_CHANNELS = 64
MAX_CHUNKS = 1000  # before the samples
MAX_SECONDS = 2 * 60 * 60  # read at once
SUPPORTED = "PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64 bits"


@dataclass(frozen=True)
class WavFile:
    """The header of a WAV file: `WavFile.open(path).read(0, 16000)` are its first samples."""

    path: Path
    rate: int  # samples per second and channel
    channels: int
    bits: int  # of a sample
    is_float: bool
    start: int  # of the samples in the file, in bytes
    samples: int  # per channel

    @classmethod
    def open(cls, path: Path) -> "WavFile":
        """Read the header of a file and check it against the size of the file."""
        with open_regular(path) as file:
            try:
                return cls(path, *_read_header(file))
            except (struct.error, InputError) as error:
                reason = "truncated or corrupt header" if isinstance(error, struct.error) else str(error)
                raise InputError(f"{path}: {reason}") from None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def seconds(self) -> float:
        return self.samples / self.rate

    def read(self, start: int = 0, count: int | None = None) -> Float32[ndarray, "samples"]:
        """Return samples in [-1, 1], the mean of the channels; fewer than `count` at the end of the file."""
        count = max(0, min(self.samples - start, self.samples if count is None else count))
        if count > MAX_SECONDS * self.rate:
            raise InputError(f"{self.path}: {count / self.rate / 3600:.1f} hours are too long to be read at once")
        size = self.channels * self.bits // 8
        with open_regular(self.path) as file:
            file.seek(self.start + start * size)
            data = file.read(count * size)
        if len(data) < count * size:
            raise InputError(f"{self.path}: truncated while it was read")
        mean = self._decode(data).reshape(count, self.channels).mean(axis=1, dtype=np.float64).astype(np.float32)
        if not np.isfinite(mean).all():
            raise InputError(f"{self.path}: some samples are not finite")
        return mean

    def _decode(self, data: bytes) -> ndarray:
        """Return all samples as floats."""
        if self.is_float:
            return np.frombuffer(data, dtype=f"<f{self.bits // 8}")
        if self.bits == 8:  # the only unsigned type
            return (np.frombuffer(data, dtype=np.uint8).astype(np.float32) - 128) / 128
        if self.bits == 24:  # as the upper bytes of 32 bits
            wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
            wide[:, 1:] = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3)
            return wide.view("<i4")[:, 0] / 2**31
        return np.frombuffer(data, dtype=f"<i{self.bits // 8}") / 2.0 ** (self.bits - 1)


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording in memory: `Recording.of({"array": samples, "sampling_rate": 16000})`, as in `datasets`."""

    waveform: Float32[ndarray, "samples"]
    rate: int
    name: str = "recording"

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Recording":
        """Check a recording; integers are scaled to [-1, 1]."""
        if missing := {"array", "sampling_rate"} - item.keys():
            raise InputError(f"a recording is {{'array': samples, 'sampling_rate': 16000}}: {min(missing)} is missing")
        array, rate = np.asarray(item["array"]), item["sampling_rate"]
        if array.ndim != 1 or not array.size:
            raise InputError(
                "the array of a recording must have one dimension, with at least one number, not the shape "
                f"{list(array.shape)}: pass one channel, or the mean of the channels"
            )
        if array.dtype.kind != "f" and array.dtype not in (np.int16, np.int32):  # the scale of others is not known
            raise InputError(f"the array of a recording must have floats, int16 or int32, not {array.dtype}")
        if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not MIN_RATE <= rate <= MAX_RATE:
            raise InputError(f"the sampling_rate of a recording must be {MIN_RATE:,} to {MAX_RATE:,}, not {rate!r}")
        scale = 2.0 ** (8 * array.dtype.itemsize - 1) if array.dtype.kind == "i" else 1.0
        waveform = (array / scale).astype(np.float32)
        if not np.isfinite(waveform).all():
            raise InputError("some samples of a recording are not finite")
        return cls(waveform, int(rate), str(Path(item.get("path") or cls.name).name))

    @property
    def samples(self) -> int:
        return len(self.waveform)

    def read(self, start: int = 0, count: int | None = None) -> Float32[ndarray, "samples"]:
        """Return samples in [-1, 1], fewer than `count` at the end."""
        return self.waveform[start:][:count]


def encode_wav(samples: Float32[ndarray, "samples"], rate: int) -> bytes:
    """Return samples in [-1, 1] as a mono WAV file of 16 bits; other values are clipped."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1.0, 1.0) * 32767).astype("<i2").tobytes())
    return data.getvalue()


def open_sound(source: str | Path | Mapping[str, Any]) -> WavFile | Recording:
    """Return the recording of a WAV file, or of a dict with an array."""
    return Recording.of(source) if isinstance(source, Mapping) else WavFile.open(Path(source))


def _read_header(file: io.BufferedReader) -> tuple[int, int, int, bool, int, int]:
    """Return rate, channels, bits, whether samples are floats, and start and number of the samples."""
    length = os.fstat(file.fileno()).st_size
    if file.read(4) != b"RIFF" or len(file.read(4)) < 4 or file.read(4) != b"WAVE":
        raise InputError("not a WAV file: convert it, e.g. with ffmpeg -i FILE out.wav")
    sample_format: tuple[int, int, int, bool] | None = None
    for _ in range(MAX_CHUNKS):
        if not (name := file.read(4)):
            break
        (size,) = struct.unpack("<I", file.read(4))
        if name == b"fmt ":
            sample_format = _read_format(file.read(min(size, 40)))
            file.seek(max(0, size - 40), os.SEEK_CUR)
        elif name == b"data":
            if sample_format is None:
                raise InputError("the samples precede their format")
            start, frame = file.tell(), sample_format[1] * sample_format[2] // 8
            if size > length - start:
                raise InputError(f"truncated: {length - start:,} bytes of samples, expected {size:,}")
            if size < frame:
                raise InputError("contains no samples")
            return *sample_format, start, size // frame
        else:
            file.seek(size, os.SEEK_CUR)
        file.seek(size % 2, os.SEEK_CUR)  # chunks begin at even positions
    raise InputError("contains no samples")


def _read_format(header: bytes) -> tuple[int, int, int, bool]:
    """Return rate, channels, bits and whether samples are floats."""
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", header[:16])
    if kind == EXTENSIBLE:
        (kind,) = struct.unpack("<H", header[24:26])
    if (kind, bits) not in {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}:
        raise InputError(f"format {kind} of {bits} bits is not supported: convert it to {SUPPORTED}")
    if not 1 <= channels <= MAX_CHANNELS or frame != channels * bits // 8:
        raise InputError(f"{channels} channels of {bits} bits in {frame} bytes: corrupt, or too many channels")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InputError(f"a sampling rate of {rate:,} Hz is not supported: resample it to 16,000 Hz")
    return rate, channels, bits, kind == FLOAT

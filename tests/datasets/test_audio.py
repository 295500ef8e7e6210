"""WAV files: every sample format against the values that were written, and files that are damaged."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from qkv.datasets.formats import audio
from qkv.datasets.formats.audio import WavFile, encode_wav
from qkv.errors import InputError

VALUES = np.array([[0.0, 0.5], [-1.0, 0.25], [0.75, -0.5], [-0.25, -0.25]])  # exact in 8 bits
MEAN = VALUES.mean(axis=1)


def chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def header(kind: int = 1, bits: int = 16, channels: int = 1, rate: int = 8000, extra: bytes = b"") -> bytes:
    frame = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", kind, channels, rate, rate * frame % 2**32, frame, bits) + extra)


def write(path: Path, *chunks: bytes) -> Path:
    body = b"WAVE" + b"".join(chunks)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def encode(values: np.ndarray, kind: int, bits: int) -> bytes:
    if kind == 3:
        return values.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (values * 128 + 128).astype(np.uint8).tobytes()
    whole = (values * 2 ** (bits - 1)).astype("<i8").tobytes()
    return b"".join(whole[start : start + bits // 8] for start in range(0, len(whole), 8))


FORMATS = [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)]


@pytest.mark.parametrize(("kind", "bits"), FORMATS)
@pytest.mark.parametrize("extensible", [False, True])
def test_channels_are_averaged_in_every_format(tmp_path: Path, kind: int, bits: int, extensible: bool) -> None:
    data = encode(VALUES, kind, bits)
    extra = struct.pack("<HHIH14s", 22, bits, 3, kind, b"\0" * 14) if extensible else b""
    format_chunk = header(0xFFFE if extensible else kind, bits, 2, extra=extra)
    path = write(tmp_path / "a.wav", chunk(b"LIST", b"odd"), format_chunk, chunk(b"data", data), chunk(b"LIST", b"x"))
    file = WavFile.open(path)
    assert (file.rate, file.channels, file.samples, file.seconds) == (8000, 2, 4, 4 / 8000)
    np.testing.assert_array_equal(file.read(), MEAN.astype(np.float32))
    np.testing.assert_array_equal(file.read(1, 2), MEAN[1:3].astype(np.float32))
    assert len(file.read(3, 10)) == 1
    assert len(file.read(4)) == 0


def test_samples_beyond_the_range_are_clipped(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(encode_wav(np.array([1.5, -1.5, 0.5], dtype=np.float32), 8000))
    np.testing.assert_allclose(WavFile.open(path).read(), [1, -1, 0.5], atol=2 / 32767)


def test_files_of_the_standard_library_are_read(tmp_path: Path) -> None:
    import wave

    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.array([1, -2, 3], dtype="<i2").tobytes())
    np.testing.assert_array_equal(WavFile.open(tmp_path / "a.wav").read() * 2**15, [1, -2, 3])


DATA = chunk(b"data", b"\1\2\3\4")
BAD = {
    "contains no samples": (header(), chunk(b"data", b"")),
    "no samples in less than a frame": (header(), chunk(b"data", b"\1")),
    "contains no data": (header(),),
    "truncated": (header(), b"data" + struct.pack("<I", 2**32 - 1) + b"\1\2"),
    "truncated format": (chunk(b"fmt ", b"\1\0"), DATA),
    "the samples precede their format": (DATA, header()),
    "format 7": (header(kind=7, bits=8), DATA),
    "12 bits": (header(bits=12), DATA),
    "0 channels": (header(channels=0), DATA),
    "1000 channels": (header(channels=1000), DATA),
    "sampling rate": (header(rate=1), DATA),
    "rate of 2^31": (header(rate=2**31), DATA),
    "not finite": (header(3, 32), chunk(b"data", np.array([np.nan], dtype="<f4").tobytes())),
    "many chunks": (header(), chunk(b"junk", b"") * 2000, DATA),
}


@pytest.mark.parametrize("chunks", BAD.values(), ids=BAD)
def test_damaged_files_are_one_line_errors(tmp_path: Path, chunks: tuple[bytes, ...]) -> None:
    path = write(tmp_path / "bad.wav", *chunks)
    with pytest.raises(InputError, match=r"bad\.wav: ") as caught:
        WavFile.open(path).read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\0\0\0\0AVI ", b"ID3\4 an mp3", b"OggS"])
def test_other_files_are_not_wav_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(InputError, match="not a WAV file"):
        WavFile.open(tmp_path / "a.wav")
    with pytest.raises(InputError, match="no such file"):
        WavFile.open(tmp_path / "b.wav")


def test_a_declared_size_allocates_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.wav", header(), chunk(b"data", b"\0" * 2 * 8000))
    monkeypatch.setattr(audio, "MAX_SECONDS", 0.5)
    with pytest.raises(InputError, match="too long"):
        WavFile.open(path).read()
    assert len(WavFile.open(path).read(0, 4000)) == 4000
    file = WavFile.open(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="truncated"):
        file.read(0, 4000)


def test_headers_cut_at_any_byte_are_errors(tmp_path: Path) -> None:
    whole = io.BytesIO(write(tmp_path / "a.wav", header(), DATA).read_bytes()).getvalue()
    for length in range(len(whole)):
        (tmp_path / "a.wav").write_bytes(whole[:length])
        with pytest.raises(InputError):
            WavFile.open(tmp_path / "a.wav")

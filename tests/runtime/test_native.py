"""Silencing native code that writes to file descriptor 2."""

import io
import json
import os
import threading

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, decoders, models

from qkv.datasets.formats.images import read_image
from qkv.errors import InputError
from qkv.runtime.native import silence_native_stderr
from qkv.tokenizers.library import PretrainedTokenizer


def test_stderr_is_silenced_inside_the_block_only(capfd: pytest.CaptureFixture[str]) -> None:
    with silence_native_stderr():
        os.write(2, b"inside")
        with silence_native_stderr():
            os.write(2, b"nested")
        os.write(2, b"inside again")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_an_error_inside_the_block_restores_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), silence_native_stderr():
        raise ValueError("x")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_blocks_in_several_threads_may_overlap(capfd: pytest.CaptureFixture[str]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with silence_native_stderr():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with silence_native_stderr():
        pass
    os.write(2, b"the other block is still active")
    leave.set()
    thread.join()
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_no_descriptor_is_left_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with silence_native_stderr():
            pass
    assert set(os.listdir("/proc/self/fd")) <= before  # another thread may close some


def test_a_closed_stderr_stays_closed() -> None:
    child = os.fork()
    if child == 0:
        os.close(2)
        with silence_native_stderr():
            pass
        try:
            os.fstat(2)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_panic_of_the_tokenizers_library_leaves_only_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, "[UNK]"))
    tokenizer.decoder = decoders.Strip("a", 5, 5)  # more than a token has
    with pytest.raises(InputError):
        PretrainedTokenizer(tokenizer).decode([1])
    assert capfd.readouterr().err == ""


def test_a_panic_while_a_tokenizer_is_read_leaves_only_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    data = json.loads(Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).to_str())
    data["model"]["continuing_subword_prefix"] = "longer than any token"
    with pytest.raises(InputError):
        PretrainedTokenizer.from_json(json.dumps(data), "tokenizer.json")
    assert capfd.readouterr().err == ""


def test_a_damaged_tiff_leaves_only_the_error(tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    data = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(data, "TIFF", compression="tiff_lzw")
    damaged = bytearray(data.getvalue())
    damaged[60:100] = bytes(40)
    (tmp_path / "damaged.tif").write_bytes(damaged)
    with pytest.raises(InputError):
        read_image(tmp_path / "damaged.tif", 3, 8, 8)
    assert capfd.readouterr().err == ""

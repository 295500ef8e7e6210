"""The compiled CPU kernels, for tests that need them."""

import pytest

from qkv.errors import Unsupported
from qkv.generation.cpu.library import library


def require_kernels() -> None:
    """Skip a test where the kernels cannot be compiled."""
    try:
        library()
    except Unsupported as error:
        pytest.skip(f"needs a C compiler: {error.reason}")

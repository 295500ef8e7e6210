"""Which device the work runs on."""

import pytest
import torch

from qkv.errors import InputError
from qkv.runtime.device import autocast, pick_device


def test_cpu_is_always_available_and_auto_picks_a_device() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["", "gpu", "CPU", "0", "cuda:x", "cuda:-1", "cuda:99999999999", "meta", "cpu:1"])
def test_an_unknown_device_is_an_error_that_lists_the_valid_ones(name: str) -> None:
    with pytest.raises(InputError, match="cuda:N"):
        pick_device(name)


def test_an_unavailable_cuda_device_is_an_error() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(InputError) as caught:
        pick_device(f"cuda:{count}")
    assert f"'cuda:{count}'" in str(caught.value)


def test_autocast_computes_matmuls_in_bfloat16() -> None:
    x = torch.ones(2, 2)
    with autocast(torch.device("cpu"), "bfloat16"):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), "float32"):
        assert (x @ x).dtype == torch.float32

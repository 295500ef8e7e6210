"""Which device the work runs on."""

import pytest
import torch

from qkv.errors import InputError
from qkv.runtime.device import autocast, pick_device


def test_the_cpu_is_always_there_and_auto_picks_what_is() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    "name", ["", "gpu", "CPU", "0", "cuda:x", "cuda:-1", "cuda:99999999999", "mps", "meta", "cpu:1"]
)
def test_a_name_that_is_no_device_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(InputError, match=r"use auto, cpu, cuda or cuda:N"):
        pick_device(name)


def test_a_cuda_device_beyond_those_there_is_refused() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(InputError) as caught:
        pick_device(f"cuda:{count}")
    assert str(caught.value) == f"device 'cuda:{count}' is not there: this machine has {count} CUDA device(s)"


def test_bfloat16_is_the_precision_of_products_where_it_is_asked_for() -> None:
    x = torch.ones(2, 2)
    with autocast(torch.device("cpu"), "bfloat16"):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), "float32"):
        assert (x @ x).dtype == torch.float32

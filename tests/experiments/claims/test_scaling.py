"""Exponents of costs by length, the range where they hold, and memory."""

import pytest
import torch

from qkv.experiments.claims import cost
from qkv.experiments.claims.complexity.cost_table import CostTable, layer_memory
from qkv.experiments.claims.complexity.scaling import exponent_table, local_slopes, range_of_exponent
from qkv.experiments.claims.measurements import Measurements, Series

CPU = torch.device("cpu")
X = (128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)


def series(function) -> Series:
    return Series(X, (tuple(function(x) for x in X), tuple(2 * function(x) for x in X)))


def test_slopes_between_neighbouring_points():
    assert local_slopes(series(lambda x: 3 * x**2)) == pytest.approx([2.0] * 5)


def test_an_exponent_holds_in_the_longest_range_of_slopes():
    flat_then_linear = series(lambda x: max(x, 512.0))
    assert range_of_exponent(flat_then_linear, 1, 0.3) == (512.0, 4096.0)
    assert range_of_exponent(flat_then_linear, 0, 0.3) == (128.0, 512.0)
    assert range_of_exponent(flat_then_linear, 2, 0.3) == ()
    assert range_of_exponent(series(lambda x: x), 1, 0.3) == (128.0, 4096.0)


def test_a_slope_outside_the_tolerance_divides_the_range():
    values = {128.0: 1.0, 256.0: 2.0, 512.0: 16.0, 1024.0: 32.0, 2048.0: 64.0, 4096.0: 128.0}
    assert range_of_exponent(series(values.__getitem__), 1, 0.3) == (512.0, 4096.0)


def test_the_table_has_fitted_exponents_beside_the_predicted_ones():
    measurements = Measurements(
        (0, 1), {}, {"time: a": series(lambda x: x**2), "time: b": series(lambda x: max(x, 512.0))}
    )
    table = exponent_table("Exponents", measurements, {"time: a": 2, "time: b": 2}, 1024, 0.3)
    assert [row[:4] for row in table.rows] == [("time", "a", "2", "2.00"), ("time", "b", "2", "1.00")]
    assert table.rows[0][-2:] == ("128", "4,096")
    assert table.rows[1][-2] == "nowhere"
    assert all(len(row) == len(table.headers) for row in table.rows)


def test_peak_memory_counts_tensors_that_exist_at_the_same_time():
    def two_at_a_time() -> None:
        for _ in range(3):
            a = torch.empty(1000, dtype=torch.float32)
            b = torch.empty(500, dtype=torch.float32)
            del a, b

    assert cost.peak_memory(two_at_a_time, CPU) == 6000
    kept: list[torch.Tensor] = []
    assert cost.peak_memory(lambda: kept.append(torch.empty(1000)), CPU) == 4000


def test_memory_of_attention_is_quadratic_without_a_fused_kernel_and_that_of_a_convolution_linear():
    with torch.no_grad():
        attention = layer_memory("self-attention", (256, 512), CPU, "reference")
        convolution = layer_memory("convolution", (256, 512), CPU, "reference")
    assert attention[512] / attention[256] == pytest.approx(4, rel=0.1)
    assert convolution[512] / convolution[256] == pytest.approx(2, rel=0.1)


def test_the_cost_table_lists_time_and_memory_of_all_layers():
    names = [f"{cost_name} by length: {layer}" for cost_name in ("time", "memory") for layer in
             ("recurrent", "convolution", "self-attention", "local attention", "Linformer")]  # fmt: skip
    curves = {name: series(lambda x: x) for name in (*names, "memory by length: self-attention, fused")}
    (table,) = CostTable.tables(Measurements((0, 1), {}, curves))
    assert len(table.rows) == 11
    assert {row[2] for row in table.rows if row[1] == "self-attention"} == {"2"}

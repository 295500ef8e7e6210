"""The memory of a neural Turing machine in the explorer, in a real browser."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.datasets.corpora.synthetic.bit_sequences import Copy
from qkv.interpret.memory_probe import MemoryProbe, MemoryTrace
from qkv.models.memory.ntm import NTM, NTMConfig
from qkv.visualize import save_page
from qkv.visualize.explorer import memory_answer
from tests.visualize.explorer.browser import Keys, Page, WebDriver, narrow, requests

pytestmark = pytest.mark.browser
INPUT, OUTPUT, WRITE, READ = range(4)  # panels


@pytest.fixture(scope="module")
def machine() -> NTM:
    torch.manual_seed(0)
    return NTM(NTMConfig(input_dim=5, output_dim=3, hidden_dim=8, locations=9, location_dim=4, read_heads=2)).eval()


@pytest.fixture(scope="module")
def trace(machine: NTM) -> MemoryTrace:
    return MemoryProbe(machine, Copy(bits=3))((4,))


def written(trace: MemoryTrace, folder: Path) -> Path:
    return save_page([memory_answer(trace)], folder / "page.html", model="runs/ntm", command="qkv view runs/ntm 4")


def test_weights_under_the_pointer_are_those_of_the_model(
    driver: WebDriver, machine: NTM, trace: MemoryTrace, tmp_path: Path
) -> None:
    with qkv.watch(machine) as records, torch.no_grad():
        machine(torch.from_numpy(trace.inputs)[None])
    expected = [
        records["write_heads"].weights[0, 0], records["read_heads"].weights[0, 0], records["read_heads"].weights[0, 1]
    ]  # fmt: skip
    driver.get_log("browser")
    page = Page(driver, written(trace, tmp_path))
    assert page.one("#tabs [aria-selected=true]").text == "Memory"
    page.choose("Locations", "all (9)")
    for panel, weights in enumerate(expected, start=WRITE):
        verb = "writes to" if panel == WRITE else "reads from"
        for step, location in ((0, 0), (4, 8), (9, 3)):
            page.hover_panel(panel, location, step)
            text = f"Step {step + 1} {verb} location {location} {weights[step, location]:.4f}"
            assert page.one(".tip").text == text
    assert page.complaints() == []


def test_bits_under_the_pointer_are_those_of_the_sequence(
    driver: WebDriver, trace: MemoryTrace, tmp_path: Path
) -> None:
    page = Page(driver, written(trace, tmp_path))
    for step, channel, name in ((0, 3, "marker 1"), (1, 0, "bit 1"), (5, 4, "marker 2")):
        page.hover_panel(INPUT, channel, step)
        assert page.one(".tip").text == f"Step {step + 1}, input {name}: {trace.inputs[step, channel]:g}"
    for step, bit in ((6, 0), (9, 2)):
        page.hover_panel(OUTPUT, bit, step)
        probability, target = trace.predicted[step, bit], trace.targets[step, bit]
        text = f"Step {step + 1}, output bit {bit + 1}: {probability:.4f}, target {target:g}"
        assert page.one(".tip").text == text
    page.hover_panel(OUTPUT, 0, 2)
    assert page.one(".tip").text == "Step 3: before the answer"
    dots = page.run(
        "return qkvExplorer.shown().handle.timeline.figure().items.filter(i => i.fill === '#d55e00').length"
    )
    assert dots == trace.wrong > 0


def test_the_packaged_machine_writes_and_reads_in_order(
    driver: WebDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    driver.get_log("browser")
    driver.get_log("performance")
    path = qkv.view("copy-ntm", "5", device="cpu").save(tmp_path / "page.html")
    page = Page(driver, path)
    assert page.text("heading") == "sequence of size 5 → 0 of 40 bits wrong"
    model = qkv.load("copy-ntm")
    inputs = Copy().generate("view 0", 1, (5,)).inputs
    with qkv.watch(model) as records, torch.no_grad():
        model(torch.from_numpy(inputs))
    written, read = (records[name].weights[0, 0].numpy() for name in ("write_heads", "read_heads"))
    locations = page.run("return qkvExplorer.payload.examples[0].memory.locations")
    for panel, weights in ((WRITE, written), (READ, read)):
        for step in (1, 3, 7, 11):
            location = int(weights[step].argmax())
            page.hover_panel(panel, locations.index(location), step)
            assert page.one(".tip").text.endswith(f"location {location} {weights[step, location]:.4f}")
    for weights in (written[1:6], read[7:12]):  # consecutive locations
        assert np.diff(weights.argmax(axis=1)).tolist() == [1] * 4
    assert page.complaints() == []
    assert requests(driver, path) == [path.as_uri()]


def test_steps_with_a_marker_are_described_by_it(driver: WebDriver, trace: MemoryTrace, tmp_path: Path) -> None:
    bits = "".join(str(int(value)) for value in trace.inputs[1, :3])
    for row, text in ((0, "Step 1: input marker 1"), (1, f"Step 2: input “{bits}”"), (5, "Step 6: input marker 2")):
        page = Page(driver, written(trace, tmp_path), f"#row={row}")
        assert page.text("readout").splitlines()[0] == text


def test_the_value_of_a_marker_is_shown_unless_it_is_1(driver: WebDriver, trace: MemoryTrace, tmp_path: Path) -> None:
    inputs = trace.inputs.copy()
    inputs[5, 4] = -1.25  # the normalized number of repeats of the repeat-copy task
    page = Page(driver, written(replace(trace, inputs=inputs), tmp_path), "#row=5")
    assert page.text("readout").splitlines()[0] == "Step 6: input marker 2 with value −1.25"


def test_locations_are_labeled_by_round_numbers(driver: WebDriver, trace: MemoryTrace, tmp_path: Path) -> None:
    _, steps, _ = trace.write_weights.shape
    weights = np.zeros((1, steps, 128), dtype=np.float32)
    weights[0, np.arange(64) % steps, np.arange(64)] = 1.0
    page = Page(driver, written(replace(trace, write_weights=weights, read_weights=weights), tmp_path))
    assert page.run("return qkvExplorer.payload.examples[0].memory.locations[0]") == 126
    names = page.run(
        """
        const { items } = qkvExplorer.shown().handle.figure(), at = items.findIndex(item => item.text === "Read head");
        return items.slice(at + 1).filter(item => item.anchor === "end").map(item => item.text);
        """
    )
    assert names == [str(location) for location in range(0, 66, 5)]


def test_keys_move_between_cells_and_panels_and_pin_a_step(
    driver: WebDriver, trace: MemoryTrace, tmp_path: Path
) -> None:
    page = Page(driver, written(trace, tmp_path))
    page.run("document.querySelector('.map').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.one(".tip").text.startswith("Step 2, input bit 1")
    page.press(*[Keys.ARROW_DOWN] * 5)
    assert page.one(".tip").text == "Step 2: before the answer"
    page.press(*[Keys.ARROW_DOWN] * 3)
    assert page.one(".tip").text.startswith("Step 2 writes to location")
    page.press(Keys.ENTER)
    location = page.run("return qkvExplorer.payload.examples[0].memory.locations[0]")
    assert page.run("return location.hash") == f"#row=1&column={location}"
    assert f"Write head writes to location {location} " in page.text("readout")
    page.press("+")
    page.press(Keys.ESCAPE)
    assert "#row" not in page.run("return location.hash")


def test_zooming_keeps_the_cells_under_the_pointer(driver: WebDriver, trace: MemoryTrace, tmp_path: Path) -> None:
    page = Page(driver, written(trace, tmp_path))
    before = page.run("return qkvExplorer.shown().handle.timeline.cornerOf({ panel: 2, row: 0, column: 5 }).w")
    page.run("document.querySelector('.map').focus()")
    page.press("+", "+")
    page.picture()
    assert page.run("return qkvExplorer.shown().handle.timeline.cornerOf({ panel: 2, row: 0, column: 5 }).w") > before
    page.hover_panel(WRITE, 0, 5)
    assert page.one(".tip").text.startswith("Step 6 writes to location")
    page.press("0")
    page.picture()
    assert page.run("return qkvExplorer.shown().handle.timeline.cornerOf({ panel: 2, row: 0, column: 5 }).w") == before


def test_the_view_fits_a_phone_and_can_be_exported(driver: WebDriver, trace: MemoryTrace, tmp_path: Path) -> None:
    narrow(driver, 390)
    try:
        page = Page(driver, written(trace, tmp_path))
        assert page.run("return document.documentElement.scrollWidth") <= 390
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page = Page(driver, written(trace, tmp_path))
    items = page.run("return qkvExplorer.shown().handle.figure().items.map(item => [item.type, item.text])")
    assert ["text", "Read head 1"] in items
    assert sum(kind == "image" for kind, _ in items) == 5


def test_the_other_views_show_the_addressing_as_matrices(driver: WebDriver, trace: MemoryTrace, tmp_path: Path) -> None:
    page = Page(driver, written(trace, tmp_path), "#view=matrix&layer=read_heads&head=1")
    np.testing.assert_allclose(page.plane(), trace.read_weights[1].ravel(), atol=1e-5)

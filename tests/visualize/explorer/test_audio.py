"""Speech in the explorer, in a real browser: the alignment above the spectrogram."""

from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.datasets.formats.audio import WavFile
from qkv.pipelines.output import AttentionMap
from qkv.pipelines.recognizer import Recognizer, Segment
from qkv.visualize import save_page
from qkv.visualize.explorer import build_payload
from tests.pipelines.recordings import las, tokenizer, whisper, write_wav
from tests.visualize.explorer.browser import HOSTILE, Keys, Page, WebDriver, narrow, requests

pytestmark = pytest.mark.browser
ALIGNMENT, SPECTROGRAM = range(2)  # panels


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return Recognizer(las(), tokenizer())


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wav(tmp_path_factory.mktemp("recordings") / "a.wav", 0.6, rate=8000)


@pytest.fixture(scope="module")
def segment(recognizer: Recognizer, recording: Path) -> Segment:
    (found,) = recognizer(recording, max_new_tokens=6).segments
    return found


def speech(tokens: tuple[str, ...], columns: int = 5, heads: int = 1, start: float = 0.0) -> Segment:
    """A segment of given tokens; token i attends to column i."""
    weights = np.full((heads, len(tokens), columns), 0.2 / (columns - 1), dtype=np.float32)
    for row in range(len(tokens)):
        weights[:, row, row % columns] = 0.8
    times = tuple(f"{start + 0.08 * column:.2f}" for column in range(columns))
    maps = (AttentionMap("decoder", tokens, times, weights),) if tokens else ()
    features = np.linspace(-1, 1, 8 * columns * 4, dtype=np.float32).reshape(8 * columns, 4)
    end = start + 0.08 * columns
    return Segment("a.wav", "".join(tokens), -0.5, maps, start=start, end=end, features=features)


def test_weights_and_values_under_the_pointer_are_those_of_the_model(
    driver: WebDriver, recognizer: Recognizer, recording: Path, segment: Segment, tmp_path: Path
) -> None:
    waveform = torch.from_numpy(WavFile.open(recording).read(0, 4800))
    features, lengths = recognizer.features([waveform])
    rows = segment.attention[0].rows
    target = torch.tensor([[*recognizer.prompt, *(recognizer.tokenizer.encode(["".join(rows)])[0])]])
    with qkv.watch(recognizer.model) as records, torch.no_grad():
        recognizer.model(features, target[:, : 1 + len(rows)], lengths)
    weights = records[segment.attention[0].layer].weights[0, 0].numpy()
    driver.get_log("browser")
    driver.get_log("performance")
    path = save_page([segment], tmp_path / "page.html", model="runs/las", command="qkv view runs/las a.wav")
    page = Page(driver, path)
    assert page.one("#tabs [aria-selected=true]").text == "Audio"
    for row, column in ((0, 0), (2, 5), (len(rows) - 1, len(segment.attention[0].columns) - 1)):
        page.hover_panel(ALIGNMENT, row, column)
        time = segment.attention[0].columns[column]
        tip = page.one(".tip").text
        assert tip.split(" attends to ")[1].startswith(f"{time} s ")
        assert float(tip.split()[-1]) == pytest.approx(weights[row, column], abs=6e-5)
    spread = float(np.ptp(segment.features))
    for band, frame in ((0, 0), (7, 30), (3, len(segment.features) - 1)):
        page.hover_panel(SPECTROGRAM, 7 - band, frame)
        text = page.one(".tip").text
        assert text.startswith(f"{0.01 * frame:.2f} s, mel band {band + 1} of 8: ")
        value = float(text.split(": ")[1].replace("−", "-"))
        assert value == pytest.approx(segment.features[frame, band], abs=spread / 255 + 0.005)
    assert page.complaints() == []
    assert requests(driver, path) == [path.as_uri()]


def test_both_panels_share_the_time_axis_in_seconds(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([speech(tuple("abcde"), start=2.0)], tmp_path / "page.html"))
    script = "return qkvExplorer.shown().handle.timeline.cornerOf(arguments[0])"
    corner = lambda panel, column: page.run(script, {"panel": panel, "row": 0, "column": column})  # noqa: E731
    for column in range(5):  # a column is as wide as eight frames
        assert corner(ALIGNMENT, column)["x"] == pytest.approx(corner(SPECTROGRAM, 8 * column + 7)["x"], abs=0.01)
    items = page.run("return qkvExplorer.shown().handle.figure().items.map(item => item.text ?? '')")
    assert "Time in seconds" in items
    assert {"2.00", "2.40"} <= set(items) or {"2.0", "2.4"} <= set(items)


def test_pointing_at_the_spectrogram_shows_the_tokens_that_attend_there(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([speech(tuple("abcde"))], tmp_path / "page.html"))
    page.hover_panel(SPECTROGRAM, 1, 17)
    assert page.text("readout").startswith("0.16 s is attended to by “c” 0.8000")
    assert page.lit("rows") == 2
    page.tokens("rows")[3].click()
    assert page.run("return location.hash") == "#row=3"
    page.hover(page.one("#title"))
    assert page.text("readout").startswith("“d” attends to 0.24 s 0.8000")


def test_rows_can_be_words(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([speech((*"no", " ", *"ab"), columns=5)], tmp_path / "page.html"))
    page.choose("Rows", "words: the average of their tokens")
    page.hover_panel(ALIGNMENT, 0, 1)
    assert page.one(".tip").text == "“no” attends to 0.08 s 0.4250"  # (0.05 + 0.8) / 2
    page.hover_panel(ALIGNMENT, 1, 3)
    assert page.one(".tip").text == "“ab” attends to 0.24 s 0.4250"
    assert page.run("return location.hash") == "#rows=words"


def test_a_recording_without_speech_shows_its_spectrogram(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    page = Page(driver, save_page([speech(())], tmp_path / "page.html"))
    page.hover_panel(0, 0, 3)
    assert page.text("readout").startswith("0.03 s, mel band 4 of 4: ")
    assert "The transcript is empty." in page.one("#view").text
    assert page.complaints() == []


def test_keys_move_from_the_alignment_to_the_spectrogram(driver: WebDriver, tmp_path: Path) -> None:
    page = Page(driver, save_page([speech(tuple("ab"))], tmp_path / "page.html"))
    page.run("document.querySelector('.map').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.one(".tip").text == "“a” attends to 0.08 s 0.0500"
    page.press(Keys.ARROW_DOWN)
    assert page.one(".tip").text == "“b” attends to 0.08 s 0.8000"
    page.press(Keys.ARROW_DOWN)
    assert page.one(".tip").text.startswith("0.12 s, mel band 4 of 4")


def test_hostile_tokens_stay_text_and_the_view_fits_a_phone(driver: WebDriver, tmp_path: Path) -> None:
    driver.get_log("browser")
    path = save_page([speech((HOSTILE, "مرحبا", "x" * 500))], tmp_path / "page.html", model=HOSTILE)
    narrow(driver, 390)
    try:
        page = Page(driver, path)
        page.hover_panel(ALIGNMENT, 0, 0)
        assert HOSTILE in page.one(".tip").text
        assert page.run("return document.documentElement.scrollWidth") <= 390
        assert page.all("img") == []
        assert driver.title != "broken"
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert page.complaints() == []


def test_a_multi_head_model_has_a_head_choice(driver: WebDriver, tmp_path: Path) -> None:
    (segment,) = Recognizer(whisper(), tokenizer())(write_wav(tmp_path / "a.wav", 0.5), max_new_tokens=4).segments
    page = Page(driver, save_page([segment], tmp_path / "page.html"))
    weights = segment.attention[0].weights
    page.tokens("heads")[2].click()
    page.hover_panel(ALIGNMENT, 1, 3)
    assert float(page.one(".tip").text.split()[-1]) == pytest.approx(weights[1, 1, 3], abs=6e-5)


def test_long_recordings_are_reduced_to_fit_into_a_page() -> None:
    long = speech(tuple("ab"), columns=400)
    (example,) = build_payload([long], max_bytes=20_000)["examples"]
    assert len(example["audio"]["values"]) <= 10_000
    assert example["audio"]["frame"] * example["audio"]["shape"][0] == pytest.approx(32.0, abs=0.1)
    (exact,) = build_payload([long])["examples"]
    assert exact["audio"]["shape"] == [3200, 4]
    assert (exact["audio"]["frame"], exact["audio"]["column"]) == (0.01, 0.08)

"""The explorer in Chromium: time to the first picture, frames per second while panning and zooming, and memory.

    python benchmarks/explorer.py --tokens 512 --tokens 4096 [--folder FOLDER]

Writes a page of 12 layers of 12 heads for each number of tokens, checks weights under the pointer, and measures it.
"""

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize.explorer import save_page

LAYERS, HEADS = 12, 12
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1440,1000")

FIRST_PICTURE = """
    const done = arguments[0];
    const drawn = () => {
      const canvas = document.querySelector("canvas.map");
      if (!canvas || !window.qkvExplorer) return requestAnimationFrame(drawn);
      const pixels = canvas.getContext("2d").getImageData(canvas.width / 2 | 0, canvas.height / 2 | 0, 1, 1).data;
      pixels[3] ? done(performance.now()) : requestAnimationFrame(drawn);
    };
    drawn();
"""

FRAMES = """
    const [seconds, done] = arguments, canvas = document.querySelector("canvas.map");
    const box = canvas.getBoundingClientRect(), times = [];
    const wheel = options => canvas.dispatchEvent(new WheelEvent("wheel", {
      bubbles: true, cancelable: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, ...options }));
    const began = performance.now();
    const frame = now => {
      times.push(now);
      if (performance.now() - began > seconds * 1000) return done(times);
      const phase = (performance.now() - began) / 1000;
      if (phase % 4 < 2) wheel({ ctrlKey: true, deltaY: phase % 2 < 1 ? -60 : 60 });
      else wheel({ deltaX: 25, deltaY: phase % 4 < 3 ? 40 : -40 });
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
"""

AT = """
    const [layer, head, row, column] = arguments, { payload, state } = qkvExplorer;
    state.set({ view: "matrix", layer, head });
    return qkvExplorer.shown().handle.heatMap.plane().at(row, column);
"""


class SyntheticMap(AttentionMap):
    """Attention of a layer that is computed when it is packed: heads of different widths around the diagonal."""

    def __init__(self, number: int, tokens: int) -> None:
        names = tuple(f"t{i}" for i in range(tokens))
        for name, value in (("layer", f"encoder.{number}"), ("rows", names), ("columns", names), ("copied", None)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "number", number)

    @property
    def shape(self) -> tuple[int, ...]:
        return HEADS, len(self.rows), len(self.rows)

    @property
    def weights(self) -> np.ndarray:  # type: ignore[override]
        return np.stack([self.head(head) for head in range(HEADS)])

    def head(self, head: int) -> np.ndarray:
        """Return the weights of one head."""
        tokens = len(self.rows)
        draw = np.random.default_rng(1000 * self.number + head)
        positions = np.arange(tokens, dtype=np.float32)
        noise = draw.random(tokens, dtype=np.float32)
        width = np.float32(2.0 ** (1 + head % 8))
        scores = -np.abs(positions[:, None] - positions + 3 * (head % 3)) / width + 4 * noise
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return scores


def chrome(profile: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(120)
    return driver


def renderer_memory(driver: webdriver.Chrome) -> int:
    """Return the resident bytes of the largest renderer process of this browser."""
    profile = driver.capabilities["chrome"]["userDataDir"]
    listing = subprocess.run(["ps", "-eo", "rss,args"], capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 1) for line in listing.splitlines()[1:]]
    return max(int(rss) * 1024 for rss, args in lines if "--type=renderer" in args and profile in args)


def first_picture(driver: webdriver.Chrome, path: Path) -> float:
    """Open the page and return the seconds until the heat map is drawn."""
    driver.get("about:blank")
    driver.get(path.as_uri())
    return driver.execute_async_script(FIRST_PICTURE) / 1000


def measure(driver: webdriver.Chrome, path: Path, tokens: int, openings: int, seconds: float) -> dict[str, Any]:
    first = [first_picture(driver, path)]
    memory = [renderer_memory(driver)]
    times = driver.execute_async_script(FRAMES, seconds)
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    memory.append(renderer_memory(driver))
    began = time.perf_counter()
    driver.execute_script("qkvExplorer.state.set({ view: 'model' }); document.body.offsetHeight")
    overview = time.perf_counter() - began
    memory.append(renderer_memory(driver))
    check(driver, tokens)
    memory.append(renderer_memory(driver))  # before the page is opened again, which leaves garbage behind
    first += [first_picture(driver, path) for _ in range(openings - 1)]
    return {
        "tokens": tokens,
        "page_mb": round(path.stat().st_size / 1e6, 2),
        "first_picture_s": round(statistics.median(first), 3),
        "slowest_first_picture_s": round(max(first), 3),
        "frames_per_s": round((len(times) - 1) / (times[-1] - times[0]) * 1000, 1),
        "slowest_of_100_frames_ms": round(gaps[int(len(gaps) * 0.99)], 1),
        "all_heads_s": round(overview, 3),
        "renderer_mb": round(max(memory) / 1e6),
    }


def check(driver: webdriver.Chrome, tokens: int) -> None:
    """Compare weights under the pointer with those of the head, within the stated precision."""
    draw = np.random.default_rng(0)
    for layer, head in ((0, 0), (7, 3), (11, 11)):
        weights = SyntheticMap(layer, tokens).head(head)
        for row in draw.integers(tokens, size=20):
            for column in (int(weights[row].argmax()), int(draw.integers(tokens))):
                shown = driver.execute_script(AT, f"encoder.{layer}", head, int(row), column)
                exact, precision = float(weights[row, column]), 0.5 / 65535 + 1e-7
                wrong = abs(shown["value"] - exact) if shown["stored"] else exact - shown["value"]
                if wrong > precision:
                    raise SystemExit(f"layer {layer}, head {head}, {row} -> {column}: shown {shown}, exact {exact}")
    driver.execute_script("qkvExplorer.state.set({ layer: '', head: 'average' })")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, action="append", help="tokens of a page [512 and 4096]")
    parser.add_argument("--folder", type=Path, help="where the pages are kept; existing ones are used again")
    parser.add_argument("--openings", type=int, default=5, help="times that a page is opened")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of panning and zooming")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True, parents=True)
    for tokens in options.tokens or [512, 4096]:
        path = folder / f"explorer-{tokens}.html"
        if not path.exists():
            maps = tuple(SyntheticMap(number, tokens) for number in range(LAYERS))
            save_page([Answer("synthetic", "", float("nan"), maps)], path, model=f"{LAYERS} layers of {HEADS} heads")
        driver = chrome(tempfile.mkdtemp())
        try:
            print(json.dumps(measure(driver, path, tokens, options.openings, options.seconds)))
        finally:
            driver.quit()


if __name__ == "__main__":
    main()

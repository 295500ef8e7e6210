"""Progress bars on a terminal, plain messages elsewhere."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from qkv.metrics import Metric
from qkv.runtime import bars
from qkv.runtime.bars import Bars
from qkv.training.display import Display
from qkv.training.run import Best


def drawn(*, terminal: bool) -> str:
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=terminal, width=120))
    bars.say("tiny: licence: [red]yours[/red]")
    with bars.byte_bar("train.en.gz", 2_000_000) as progress:
        progress(500_000)
        progress(2_000_000)
    with bars.count_bar("pictures of [b] {c}", 8000) as progress:
        progress(700)
        progress(8000)
    return out.getvalue()


def test_a_bar_shows_name_size_rate_and_remaining_time() -> None:
    shown = drawn(terminal=True)
    for text in ("train.en.gz", "2.0/2.0 MB", "eta", "B/s", "pictures of [b] {c}", "8000/8000"):
        assert text in shown


def test_without_a_terminal_only_messages_are_printed() -> None:
    assert drawn(terminal=False) == "tiny: licence: [red]yours[/red]\n"


def test_a_live_bar_does_not_redirect_stdout_or_stderr() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    before = sys.stdout, sys.stderr
    with Bars(console).count_bar("texts", 3):
        assert (sys.stdout, sys.stderr) == before
    with Display(console):
        assert (sys.stdout, sys.stderr) == before


def test_every_progress_display_of_the_package_is_created_in_one_function() -> None:
    source = Path(bars.__file__).parents[1]
    created = [path.name for path in source.rglob("*.py") if re.search(r"\b(Progress|Live)\(", path.read_text())]
    assert created == ["bars.py"]


def test_control_characters_of_a_name_or_message_are_escaped() -> None:
    out = io.StringIO()
    shown = Bars(Console(file=out, force_terminal=True, width=120, color_system=None))
    shown.say("a\x1b[2Jb")
    with shown.count_bar("c\x1b[2Jd", 8000):
        pass
    assert r"a\x1b[2Jb" in out.getvalue()
    assert r"c\x1b[2Jd" in out.getvalue()


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [(140, ("(best 91.40%)", "640 tokens/s"), ()), (110, ("640 tokens/s",), ("best",)), (80, (), ("best", "tokens/s"))],
)
def test_the_training_line_keeps_bar_and_remaining_time(
    width: int, shown: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=width, height=20))
    with display:
        for done in (0.1, 0.2):
            display.step(3, 30, done, 1.234, 640.0, "tokens")
            display.validated(Metric("accuracy", percent=True), 0.914, Best(3, 0.914))
    last = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n").strip().splitlines()[-1]
    for text in ("epoch 3/30", "━━━━━━━━", "20 %", "loss 1.234", "valid accuracy 91.40%", "eta", *shown):
        assert text in last
    assert re.search(r"eta +[-\d]+:[-\d]+:[-\d]+ *$", last)
    assert len(last) <= width
    assert not any(text in last for text in left_out)


def test_the_training_line_says_that_it_validates() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=120, height=20))
    with display:
        display.step(30, 30, 1.0, 1.234, 640.0, "tokens")
        display.validating()
    assert "validating" in out.getvalue()


def test_the_rate_is_an_integer_below_a_thousand() -> None:
    out = io.StringIO()
    Display(Console(file=out, width=200)).step(1, 2, 0.5, 1.0, 84.2, "images")
    assert out.getvalue().strip().endswith("  84 images/s")

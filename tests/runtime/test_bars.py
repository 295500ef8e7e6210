"""What a person sees of long work: a bar on a terminal, and nothing but words elsewhere."""

import io

from rich.console import Console

from qkv.runtime.bars import Bars


def drawn(*, terminal: bool) -> str:
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=terminal, width=120))
    bars.say("tiny: licence: [red]yours[/red]")
    with bars.of_bytes("train.en.gz", 2_000_000) as progress:
        progress(500_000)
        progress(2_000_000)
    with bars.of_things("pictures of [b] {c}", 8000) as progress:
        progress(700)
        progress(8000)
    return out.getvalue()


def test_a_terminal_sees_the_file_its_size_its_rate_and_the_time_left() -> None:
    shown = drawn(terminal=True)
    for words in ("train.en.gz", "2.0/2.0 MB", "eta", "B/s", "pictures of [b] {c}", "8000/8000"):
        assert words in shown


def test_elsewhere_there_is_no_bar_and_words_are_printed_as_they_are() -> None:
    assert drawn(terminal=False) == "tiny: licence: [red]yours[/red]\n"

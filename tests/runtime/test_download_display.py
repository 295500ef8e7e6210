"""What a person sees of a download: a bar with rate and ETA on a terminal, and nothing but words elsewhere."""

import io

from rich.console import Console

from qkv.runtime.download_display import DownloadDisplay


def drawn(*, terminal: bool) -> str:
    out = io.StringIO()
    display = DownloadDisplay(Console(file=out, force_terminal=terminal, width=120))
    display.say("tiny: licence: [red]yours[/red]")
    with display.bar("train.en.gz", 2_000_000) as progress:
        progress(500_000)
        progress(2_000_000)
    return out.getvalue()


def test_a_terminal_sees_the_file_its_size_its_rate_and_the_time_left() -> None:
    shown = drawn(terminal=True)
    for words in ("train.en.gz", "2.0/2.0 MB", "eta", "B/s"):
        assert words in shown


def test_elsewhere_there_is_no_bar_and_words_are_printed_as_they_are() -> None:
    assert drawn(terminal=False) == "tiny: licence: [red]yours[/red]\n"

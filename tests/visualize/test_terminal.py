"""Terminal heat maps: with and without color, at any width, for arbitrary tokens."""

import io
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from qkv.errors import InputError
from qkv.pipelines.output import AttentionMap
from qkv.visualize import heat_map
from qkv.visualize.colormap import ON_DARK, ON_LIGHT, Rgb, readable_on, shade
from qkv.visualize.glyphs import visible


def one_hot(rows: str | list[str], columns: str | list[str], *, read: list[int]) -> AttentionMap:
    """A map in which row i attends only to column read[i]."""
    return AttentionMap("decoder", tuple(rows), tuple(columns), np.eye(len(columns))[read][None])


def printed(
    attention_map: AttentionMap, *, width: int = 80, head: int | None = None, max_lines: int | None = None
) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(heat_map(attention_map, head=head, max_lines=max_lines))
    return capture.get().splitlines()


def colored(attention_map: AttentionMap, row: int) -> list[Segment]:
    console = Console(file=io.StringIO(), width=80, color_system="truecolor", force_terminal=True, _environ={})
    lines = console.render_lines(heat_map(attention_map))
    return [segment for segment in lines[2 + row] if segment.style is not None and segment.style.bgcolor is not None]


def luminance(rgb: Rgb) -> float:
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_without_color_the_full_block_marks_the_attended_token() -> None:
    lines = printed(one_hot("ab", "xyz", read=[2, 0]))
    heading, first, second = lines[1:4]
    assert first.startswith("a ")
    assert first.index("█") == heading.index("z")
    assert second.index("█") == heading.index("x")
    assert first.count("█") == second.count("█") == 2


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (200, 5), (3, 400), (339, 339), (25, 90)])
@pytest.mark.parametrize("lines", [15, 24, 60])
def test_a_heat_map_fits_the_screen_and_says_what_is_left_out(rows: int, columns: int, lines: int) -> None:
    large = AttentionMap("encoder.0", ("token",) * rows, ("token",) * columns, np.full((1, rows, columns), 1 / columns))
    everything, capped = printed(large), printed(large, max_lines=lines)
    assert len(capped) <= lines
    if len(everything) < lines:
        assert capped == everything
    else:
        assert f"of {rows} rows" in capped[-1]
        assert f"of {columns} columns" in capped[-1]
        assert "--full" in capped[-1]
        shown = sum(line.startswith("token ") for line in capped)
        assert shown >= min(rows, lines // 3)  # the screen is used


def test_numbers_of_two_digits_do_not_touch() -> None:
    columns = tuple(str(number) for number in range(16))
    heading = printed(AttentionMap("memory", ("a",), columns, np.full((1, 1, 16), 1 / 16)))[1]
    assert heading.split() == ["0", "5", "10", "15"]


def test_very_long_tokens_and_layer_names_are_truncated() -> None:
    assert visible(100_000 * "x") == 80 * "x" + "…"
    long = AttentionMap(100_000 * "\x1b", (100_000 * "x",), ("y",), np.ones((1, 1, 1)))
    lines = printed(long)
    assert max(map(cell_len, lines)) <= 80
    assert lines[0].startswith(r"\x1b")


def test_no_color_gives_blocks_without_escape_codes() -> None:
    console = Console(file=io.StringIO(), color_system="truecolor", force_terminal=True, _environ={"NO_COLOR": "1"})
    with console.capture() as capture:
        console.print(heat_map(one_hot("ab", "xyz", read=[2, 0])))
    assert "█" in capture.get()
    assert "48;" not in capture.get()


def test_sixteen_color_terminals_get_blocks() -> None:
    console = Console(file=io.StringIO(), color_system="standard", force_terminal=True, _environ={})
    with console.capture() as capture:
        console.print(heat_map(one_hot("ab", "xyz", read=[2, 0])))
    assert "█" in capture.get()


def test_only_encodable_characters_are_written() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    Console(file=file, width=80, color_system=None).print(heat_map(one_hot("ä ", ["x", "年", " "], read=[2, 0])))
    file.flush()
    text = file.buffer.getvalue().decode("cp1252")
    assert "##" in text
    assert "  x ? _ \n" in text


def test_with_color_the_brightest_cell_marks_the_attended_token() -> None:
    weights = np.array([[[0.1, 0.7, 0.2]]])
    cells = colored(AttentionMap("decoder", ("a",), ("x", "y", "z"), weights), row=0)
    levels = [luminance(tuple(cell.style.bgcolor.get_truecolor())) for cell in cells]  # type: ignore[union-attr]
    assert len(levels) == 3
    assert levels[1] > levels[2] > levels[0]


def test_word_cells_show_the_weight() -> None:
    weights = np.array([[[0.125, 0.75, 0.01]]])
    cells = colored(AttentionMap("decoder", ("Hund",), ("two", "dogs", "play"), weights), row=0)
    assert [cell.text.strip() for cell in cells] == [".12", ".75", ""]


@pytest.mark.parametrize("ramp", [ON_DARK, ON_LIGHT])
def test_shades_are_ordered_and_readable(ramp: tuple[str, ...]) -> None:
    shades = [shade(ramp, fraction) for fraction in np.linspace(0, 1, 101)]
    for background in shades:
        low, high = sorted([luminance(background), luminance(readable_on(background))])
        assert (high + 0.05) / (low + 0.05) >= 4.5
    levels = [luminance(background) for background in shades]
    assert all(a < b for a, b in pairwise(levels)) or all(a > b for a, b in pairwise(levels))


def test_wide_glyphs_are_aligned() -> None:
    lines = printed(one_hot("年a", "２０年3月", read=[2, 4]))
    heading, first, second = lines[1:4]
    assert cell_len(first.split("█")[0]) == cell_len(heading.split("年")[0])
    assert cell_len(second.split("█")[0]) == cell_len(heading.split("月")[0])


@pytest.mark.parametrize("width", [20, 37, 80])
def test_an_input_wider_than_the_terminal_becomes_stacked_panels(width: int) -> None:
    columns = [f"w{j:02}" for j in range(40)]
    lines = printed(one_hot("abc", columns, read=[0, 20, 39]), width=width)
    assert max(map(cell_len, lines)) <= width
    headings = [line.split() for line in lines if "w" in line]
    assert [token for heading in headings for token in heading] == columns
    assert sum(line.startswith("a ") for line in lines) == len(headings) > 1
    assert sum("█" in line for line in lines) == 3 + 1  # one cell in each row, and the legend


def test_long_tokens_are_truncated_with_an_ellipsis() -> None:
    lines = printed(one_hot(["Donaudampfschifffahrtsgesellschaft"], ["Rindfleischetikettierungsgesetz", "b"], read=[0]))
    assert "Rindfleischetik…" in lines[1]
    assert lines[2].startswith("Donaudampfschifffah… █")


@pytest.mark.parametrize(
    ("token", "shown"),
    [(" ", "␣"), ("\n", "⏎"), ("", "␣"), ("\x1b[2J", "⟨001B⟩[2J"), ("\u202eabc", "⟨202E⟩abc"), ("\u0301", "◌\u0301")],
)
def test_no_token_is_invisible_or_moves_the_cursor(token: str, shown: str) -> None:
    assert visible(token) == shown
    text = "\n".join(printed(one_hot(["a"], [token, "b"], read=[0])))
    assert shown in text
    assert "\x1b" not in text


def test_a_joiner_inside_a_word_is_part_of_its_spelling() -> None:
    assert visible("می\u200cشود") == "می\u200cشود"
    assert visible("\u200c") == "⟨200C⟩"


def test_heads_are_averaged_by_default() -> None:
    two_heads = AttentionMap("decoder.0", ("a",), ("x", "y", "z"), np.array([[[1.0, 0, 0]], [[0, 0, 1.0]]]))
    average, first, second = (printed(two_heads, head=head) for head in (None, 0, 1))
    assert "average of 2 heads" in average[0]
    assert "head 1 of 2" in second[0]
    assert average[2] == "a ██  ██"
    assert first[2].rstrip() == "a ██"
    assert second[2] == "a     ██"


@pytest.mark.parametrize("head", [-1, 2])
def test_an_unknown_head_is_an_error_that_names_the_valid_ones(head: int) -> None:
    two_heads = AttentionMap("decoder.0", ("a",), ("x",), np.ones((2, 1, 1)))
    with pytest.raises(InputError, match=f"head {head}"):
        heat_map(two_heads, head=head)


def test_a_map_without_tokens_shows_a_message() -> None:
    assert printed(AttentionMap("decoder", (), ("x",), np.ones((1, 0, 1)))) == ["decoder: no tokens to show"]


def test_weights_that_do_not_fit_their_tokens_are_an_error() -> None:
    with pytest.raises(InputError, match="1 rows and 2 columns"):
        heat_map(AttentionMap("decoder", ("a",), ("x", "y"), np.ones((1, 2, 2))))


def test_importing_the_view_does_not_import_matplotlib() -> None:
    code = "import sys, qkv.visualize; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

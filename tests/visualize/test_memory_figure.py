"""The memory figure of a neural Turing machine."""

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from qkv.cli.main import app
from qkv.errors import InputError
from qkv.interpret.memory_probe import MemoryTrace, used_locations
from qkv.training import job
from qkv.training.recipe import read_recipe
from qkv.visualize.memory_figure import _draw, save_memory_png


def marching(heads: int = 1, locations: int = 50, times: int = 1) -> MemoryTrace:
    """The trace of copying three vectors of two bits with the last bit wrong, repeated."""
    written, read = np.zeros((1, 8, locations)), np.zeros((heads, 8, locations))
    for step, (write_at, read_at) in enumerate(
        zip([10, 11, 12, 13, 14, 14, 14, 14], [10] * 5 + [11, 12, 13], strict=True)
    ):
        written[:, step, write_at] = read[:, step, read_at] = 1.0
    bits = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float64)
    inputs, targets, said = np.zeros((8, 4)), np.zeros((8, 2)), np.full((8, 2), 0.5)
    inputs[1:4, :2] = targets[5:] = said[5:] = bits
    said[7, 1] = 0.2
    asked = np.array([0.0] * 5 + [1.0] * 3)
    several = [np.concatenate([part] * times) for part in (inputs, targets, asked, said)]
    return MemoryTrace("3", *several, *(np.concatenate([weights] * times, axis=1) for weights in (written, read)))


def test_only_used_locations_and_a_margin_are_shown():
    seen = marching()
    assert used_locations(seen.write_weights, seen.read_weights) == list(range(8, 17))
    assert used_locations(np.full((1, 4, 100), 0.01)) == list(range(100))
    assert used_locations(np.eye(5)[None]) == list(range(5))
    one = np.zeros((1, 1, 20))
    one[..., 7] = 1.0
    assert used_locations(one) == [5, 6, 7, 8, 9]


def test_locations_wrap_around():
    weights = np.zeros((1, 4, 30))
    weights[0, range(4), [28, 29, 0, 1]] = 1.0
    assert used_locations(weights) == [26, 27, 28, 29, 0, 1, 2, 3]


def test_the_figure_has_all_panels_and_marks_wrong_bits():
    pytest.importorskip("matplotlib")
    seen = marching(heads=2)
    figure = _draw(seen)
    names = [axes.get_title(loc="left") for axes in figure.axes]
    assert names == ["input", "answer: 1 of 6 bits wrong", "written at", "read at, head 1", "read at, head 2"]
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    np.testing.assert_array_equal(shown[0], seen.inputs.T)
    np.testing.assert_array_equal(shown[2], seen.write_weights[0].T[8:17])
    assert not shown[1][:, :5].any()  # before it is asked, an answer is not looked at
    (dots,) = figure.axes[1].lines
    assert (dots.get_xdata().tolist(), dots.get_ydata().tolist()) == ([7], [1])
    assert _draw(marching()).axes[3].get_title(loc="left") == "read at"


def test_tick_spacing_and_dot_size():
    pytest.importorskip("matplotlib")
    short, long = _draw(marching()), _draw(marching(times=200))
    assert short.axes[0].get_xticks().tolist() == list(range(8))
    assert long.axes[0].get_xticks().tolist() == list(range(0, 1600, 35))
    for figure, steps in ((short, 25), (long, 1600)):  # a cell is 0.16 inches, or as many as fit into 14
        (dots,) = figure.axes[1].lines
        assert dots.get_markersize() + dots.get_markeredgewidth() < 72 * min(0.16, 14 / steps) / 2


def test_the_figure_is_written_as_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = save_memory_png(marching(), tmp_path / "memory.png")
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300


@pytest.mark.usefixtures("unchecked")  # which would take longer than all else
def test_view_shows_sequences_of_the_given_sizes(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = ["model.hidden_dim=4", "model.locations=3", "model.location_dim=2", "data.size=4", "train.batch_size=4"]
    run = job.begin(read_recipe("recall-ntm", [*sizes, "train.epochs=1"]), tmp_path / "run", "cpu").run

    def view(*arguments: object) -> Result:
        return CliRunner().invoke(app, ["view", *map(str, arguments), "--device", "cpu"], catch_exceptions=False)

    ended = view(run.folder, "3", "4")
    assert ended.stdout.startswith("write_heads\n")
    assert ended.stdout.splitlines()[-1] == str(run.folder / "attention.html")
    assert "of size 3" in ended.stderr
    assert "of 18 bits wrong" in ended.stderr
    text = (run.folder / "attention.html").read_text(encoding="utf-8")
    assert "sequence of size 3" in text
    assert "sequence of size 4" in text
    page = tmp_path / "other.html"
    ended = view(run.checkpoints[-1], "--page", page, "--png", tmp_path / "other.png", "--json")
    assert '"size": "6"' in ended.stdout
    assert page.exists()
    assert (tmp_path / "other.png").exists()
    for arguments, words in ((["0"], "'0'"), (["3", "--layer", "x"], "layer 'x'"), (["3", "--count", "2"], "--count")):
        with pytest.raises(InputError, match=words):
            view(run.folder, *arguments)

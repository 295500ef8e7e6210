"""Learning curves of a comparison."""

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from qkv.visualize.curves import Curve, draw_curves


@pytest.mark.parametrize("steps", [(7,), (1, 2, 3), (100, 200, 12_345)])
def test_ticks_of_steps_are_integers(steps: tuple[int, ...]) -> None:
    figure = draw_curves([Curve("a", steps, (0.5,) * len(steps))], "loss")
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())

"""Sequential color maps for attention weights."""

from collections.abc import Sequence

import numpy as np

# Nine steps of one hue, evenly spaced in OKLCH lightness: safe for color blindness and grayscale printing.
ON_LIGHT = ("#f3f5fb", "#cfd9f2", "#abbeed", "#87a1ea", "#6585e2", "#4969d1", "#334fb5", "#223892", "#152569")
ON_DARK = ("#1a1e28", "#263252", "#34467d", "#445ca9", "#5674d0", "#7090eb", "#91adf9", "#b6cbfe", "#dee8ff")
# Of negative scores: the opposite hue, with the same steps of lightness.
NEGATIVE_ON_LIGHT = (
    "#fdf4f0", "#f8d3c4", "#f0b199", "#e38e6f", "#cf6b48", "#b04d2b", "#8c3517", "#68230c", "#451405"
)  # fmt: skip
NEGATIVE_ON_DARK = (
    "#251a16", "#4a2b1f", "#713c27", "#984f30", "#be6640", "#da8560", "#eca688", "#f8c8b3", "#ffe8de"
)  # fmt: skip

Rgb = tuple[int, int, int]


def shade(ramp: Sequence[str], fraction: float) -> Rgb:
    """Interpolate a color map at a fraction from 0 to 1."""
    stops = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in ramp])
    positions = np.linspace(0.0, 1.0, len(ramp))
    red, green, blue = (round(float(np.interp(fraction, positions, stops[:, channel]))) for channel in range(3))
    return red, green, blue


def readable_on(background: Rgb) -> Rgb:
    """Return black or white, whichever contrasts more with the background (WCAG relative luminance)."""
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Black and white contrast equally at 0.179 = sqrt(1.05 * 0.05) - 0.05.
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)

"""Audio in the payload: the log-mel spectrogram of a recording, on the time axis of its alignment."""

from typing import Any

import numpy as np

from qkv.nn.encoders.log_mel import HOPS_PER_SECOND
from qkv.pipelines.recognizer import Segment
from qkv.visualize.explorer.packing import pack_bytes


def audio_part(segment: Segment, max_bytes: int) -> dict[str, Any]:
    """Return the spectrogram [frames, bands] as bytes, and the seconds of a frame and of a column of the maps.

    Where it would exceed `max_bytes`, neighboring frames are averaged.
    """
    features, frames_per_value = segment.features, 1
    while features.size * 4 > max_bytes * 3 and len(features) > 1:
        padded = np.concatenate([features, features[-1:]]) if len(features) % 2 else features
        features, frames_per_value = padded.reshape(-1, 2, padded.shape[1]).mean(axis=1), 2 * frames_per_value
    low, high = float(features.min(initial=0.0)), float(features.max(initial=0.0))
    return {
        "start": segment.start,
        "end": segment.end,
        "frame": frames_per_value / HOPS_PER_SECOND,
        "column": _seconds_per_column(segment),
        "shape": [*features.shape],
        "low": low,
        "high": high,
        "values": pack_bytes(features, low, high),
    }


def _seconds_per_column(segment: Segment) -> float:
    """Return the time from one column of the maps to the next; the columns are named by their times."""
    columns = segment.attention[0].columns if segment.attention else ()
    if len(columns) < 2:
        return segment.end - segment.start
    return round((float(columns[-1]) - float(columns[0])) / (len(columns) - 1), 4)

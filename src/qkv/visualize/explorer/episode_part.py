"""Few-shot episodes in the payload: the support images and the query, with their classes."""

from typing import Any

from qkv.interpret.episode_probe import EpisodeAnswer
from qkv.visualize.explorer.image_part import image_part


def episode_part(answer: EpisodeAnswer, max_bytes: int) -> dict[str, Any]:
    """Return the images in order, the query last, and their classes from 1; all images have at most `max_bytes`."""
    share = max_bytes // len(answer.labels)
    return {
        "images": [image_part(pixels, share) for pixels in answer.pixels],
        "classes": [label + 1 for label in answer.labels],
        "predicted": answer.guess + 1,
    }


def episode_notes(answer: EpisodeAnswer) -> list[str]:
    """Return whether the prediction is correct."""
    return ["correct" if answer.right else f"wrong: the label is class {answer.labels[-1] + 1}"]

"""Images in the payload: PNG files of small ones, JPEG files of photographs, reduced if a page would be too large."""

import base64
import io
import math
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

MAX_PNG_PIXELS = 2**16  # of an image that is stored without loss
JPEG_QUALITY = 90
SMALLEST_SIDE = 32  # pixels


def image_part(pixels: UInt8[np.ndarray, "height width colors"], max_bytes: int) -> dict[str, Any]:
    """Return an image as a file in base64 of at most `max_bytes`, and the height and width of its pixels."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    while True:
        kind = "png" if image.width * image.height <= MAX_PNG_PIXELS else "jpeg"
        values = _encode(image, kind)
        if len(values) <= max_bytes or max(image.size) <= SMALLEST_SIDE:
            return {"height": image.height, "width": image.width, "type": f"image/{kind}", "values": values}
        side = max(SMALLEST_SIDE, int(0.95 * max(image.size) * min(0.95, math.sqrt(max_bytes / len(values)))))
        image.thumbnail((side, side))


def _encode(image: Image.Image, kind: str) -> str:
    data = io.BytesIO()
    image.save(data, format=kind, quality=JPEG_QUALITY)
    return base64.b64encode(data.getvalue()).decode()

"""Claims about attention over images."""

from qkv.experiments.claims.vision import (  # noqa: F401  (imported to be registered)
    caption_attention,
    caption_pointing,
    patches,
)

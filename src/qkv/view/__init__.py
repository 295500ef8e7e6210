"""Shows a person what attended to what: in the terminal, as a figure, as a page to explore."""

from qkv.view.figure import save_png
from qkv.view.page import save_page
from qkv.view.picture import over_patches, save_picture_png
from qkv.view.selection import pick_map
from qkv.view.terminal import heat_map

__all__ = ["heat_map", "over_patches", "pick_map", "save_page", "save_picture_png", "save_png"]

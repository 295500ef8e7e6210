"""Attention visualization: heat maps in the terminal, figures and interactive pages."""

from qkv.view.figure import save_png
from qkv.view.page import save_page
from qkv.view.picture import over_patches, save_picture_png
from qkv.view.selection import pick_map
from qkv.view.terminal import heat_map

__all__ = ["heat_map", "over_patches", "pick_map", "save_page", "save_picture_png", "save_png"]

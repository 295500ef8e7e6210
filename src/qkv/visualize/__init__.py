"""Attention visualization: heat maps in the terminal, figures and interactive pages."""

from qkv.visualize.explorer import save_page
from qkv.visualize.figure import save_png
from qkv.visualize.image_overlay import over_patches, save_picture_png
from qkv.visualize.selection import pick_map
from qkv.visualize.terminal import heat_map

__all__ = ["heat_map", "over_patches", "pick_map", "save_page", "save_picture_png", "save_png"]

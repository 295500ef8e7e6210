"""Models as folders that people and other libraries know."""

from qkv.interop.conversion import convert
from qkv.interop.folder import Network, load, load_as, save_model

__all__ = ["Network", "convert", "load", "load_as", "save_model"]

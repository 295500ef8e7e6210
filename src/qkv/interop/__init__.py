"""Load, save and convert model directories."""

from qkv.interop.conversion import convert
from qkv.interop.folder import Network, load, load_as, save_model

__all__ = ["Network", "convert", "load", "load_as", "save_model"]

"""Models as folders that people and other libraries know."""

from qkv.interop.folder import Network, load, load_as, save_model

__all__ = ["Network", "load", "load_as", "save_model"]

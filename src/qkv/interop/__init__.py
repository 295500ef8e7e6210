"""Models as folders that people and other libraries know."""

from qkv.interop.folder import load, save_model

__all__ = ["load", "save_model"]

"""Load, save and convert model directories."""

from qkv.hub.conversion import convert
from qkv.hub.model_folder import Network, load, load_as, save, save_model

__all__ = ["Network", "convert", "load", "load_as", "save", "save_model"]

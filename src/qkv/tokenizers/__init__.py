"""Tokenizers: train, load and apply the map between text and token ids."""

from qkv.tokenizers import kinds as kinds

"""Layers that several models share, and the interfaces of models."""

from qkv.nn.feed_forward import FeedForward, GatedFeedForward
from qkv.nn.interfaces import Decoder, EncoderDecoder, LanguageModel, Model, SequenceModel, TextEncoder
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.pooling import AttentionPooling, LastPooling, MeanPooling
from qkv.nn.rnn import BiRNN, Recurrent
from qkv.nn.source_attention import SourceAttention

__all__ = [
    "AttentionPooling",
    "BiRNN",
    "Decoder",
    "EncoderDecoder",
    "FeedForward",
    "GatedFeedForward",
    "LanguageModel",
    "LastPooling",
    "MeanPooling",
    "Model",
    "MultiHeadAttention",
    "Recurrent",
    "SequenceModel",
    "SourceAttention",
    "TextEncoder",
]

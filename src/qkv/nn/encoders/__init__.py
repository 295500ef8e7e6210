"""Encoders that several models can use: texts, images, characters of words, and features of speech."""

"""Attention maps of trained models: what attends to what, in every layer and head."""

"""Attention maps of trained models, attribution of predictions to inputs, and tests of their faithfulness."""

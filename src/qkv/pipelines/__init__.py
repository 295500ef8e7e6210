"""Pipelines: what users call on a trained model, raw input in, answer out."""

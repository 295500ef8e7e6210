"""Evaluation: a trained model against references."""

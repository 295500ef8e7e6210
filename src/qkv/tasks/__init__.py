"""Tasks for training, and the inference pipelines of trained models."""

"""Pipelines: apply a trained model to raw inputs."""

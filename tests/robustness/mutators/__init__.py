"""Mutations of files and folders; each is named and reproducible from a seed."""

from tests.robustness.mutators import content, documents, images, special, tensors, tokenizers  # noqa: F401
from tests.robustness.mutators.registry import MUTATORS, Mutator, Target, of_families
from tests.robustness.mutators.special import output_targets, prepare_output

__all__ = ["MUTATORS", "Mutator", "Target", "of_families", "output_targets", "prepare_output"]

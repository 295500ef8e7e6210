"""Data: sets of pairs, vocabularies, and batches of tensors."""

"""Training losses and training data transformations."""

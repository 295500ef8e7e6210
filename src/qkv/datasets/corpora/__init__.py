"""Public and synthetic datasets, one file each."""

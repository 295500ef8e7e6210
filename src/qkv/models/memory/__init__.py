"""Models of sequences of vectors with an external memory, and their baseline; one file each."""

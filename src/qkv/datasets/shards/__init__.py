"""Text that is too large for memory: sources, tokenized shards, and permutations of their chunks."""

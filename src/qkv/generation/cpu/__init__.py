"""Decoding on CPUs with compiled kernels: packed float32, bfloat16 or int8 weights and one call per step."""

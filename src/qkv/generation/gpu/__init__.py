"""Decoding on GPUs with Triton kernels: a whole step is a fixed sequence of launches that a CUDA graph replays."""

"""Triton kernels of losses, convolutions and recurrent layers; `nn/fast.py` and `nn/projected_lstm.py` launch them."""

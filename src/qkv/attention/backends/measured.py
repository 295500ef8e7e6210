"""Measured crossover points between attention kernels, for an H200 with torch 2.11 and used on all GPUs.

`benchmarks/attention.py --crossovers` prints the measurements for the device it runs on.
"""

# Minimum number of floating-point operations for cuDNN. PyTorch prefers it in half precision and it is the fastest on
# large calls, but it builds a plan for every new shape (70 to 280 ms), and text has many shapes. Below this size, flash
# and the memory-efficient kernel are as fast without a plan.
PLAN_OPERATIONS = 2**34

# Minimum number of score cells (batch x heads x queries x keys) for FlexAttention, which skips masked blocks and does
# not materialize biases. Below this size, its host overhead outweighs the savings.
FLEX_CELLS = 2**28

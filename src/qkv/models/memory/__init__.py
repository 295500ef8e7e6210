"""Models with a memory: memory networks, neural Turing machines, and an LSTM as baseline; one file each."""

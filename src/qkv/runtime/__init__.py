"""The machine underneath: devices, randomness, and files that are whole or absent."""

"""System-level utilities: devices, memory, random state, atomic files, downloads and console text."""

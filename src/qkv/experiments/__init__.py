"""Experiments: recorded results, comparisons of runs, sweeps, result tables and claims."""

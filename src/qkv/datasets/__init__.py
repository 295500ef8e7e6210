"""Datasets: public and synthetic corpora, and readers of your own files."""

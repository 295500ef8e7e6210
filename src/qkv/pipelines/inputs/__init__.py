"""Raw inputs to batches: texts, trees, windows of long texts, and images; tasks use them too."""

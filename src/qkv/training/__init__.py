"""Training: recipes, resumable runs and the loop."""

"""Training: recipes, runs that survive interruption, and the loop."""

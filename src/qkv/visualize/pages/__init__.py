"""Reports as HTML pages without scripts in the style of the explorer: evaluations and comparisons of runs."""

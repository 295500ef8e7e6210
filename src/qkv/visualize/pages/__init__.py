"""HTML pages, each a template and the function that fills it."""

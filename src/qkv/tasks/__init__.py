"""Tasks: text in, answers out; and what training needs to know of each."""

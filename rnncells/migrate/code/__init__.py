"""Analysis of one file: its text and tree, its names, and what expressions are."""

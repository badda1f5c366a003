"""What is known of a file: its text and tree, its names, and what expressions are."""

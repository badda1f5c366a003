"""Networks and their learning rules: the paper's, and modern baselines."""

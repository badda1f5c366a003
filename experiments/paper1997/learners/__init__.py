"""Networks and their learning rules: the paper's, its competitors, and baselines."""

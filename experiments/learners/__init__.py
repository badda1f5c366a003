"""Networks and how they learn: the paper's, and those of today beside them."""

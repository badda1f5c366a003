"""Results for the rows of Hochreiter and Schmidhuber, 1997."""

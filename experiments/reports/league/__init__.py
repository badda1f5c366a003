"""Results of the league of cells."""

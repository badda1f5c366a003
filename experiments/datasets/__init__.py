"""Data sets and artificial tasks, as arrays and pure functions."""

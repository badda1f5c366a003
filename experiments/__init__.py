"""Experiments that reproduce published numbers, one for each file in `configs`."""

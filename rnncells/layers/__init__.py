"""Layers over sequences, made of cells; users import them from `rnncells`."""

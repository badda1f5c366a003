"""Experiments: published numbers, each made again from one file in `configs`."""

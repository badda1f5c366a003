"""Rewrites code for recurrent cells of Flax <= 0.6.11."""

__version__ = "0.1.0"

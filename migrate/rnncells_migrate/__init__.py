"""Rewrites code for recurrent cells of Flax <= 0.6.11."""

"""`rnncells migrate`: rewrites code for the recurrent API of Flax <= 0.6.11.

The command parses files and never runs them. It replaces parts of their text, so all
other bytes stay. If the new code may differ from the old code, it marks the line with a
comment, `TODO(rnncells)`, and lists it in the summary.

Only `params` needs JAX and Flax.
"""

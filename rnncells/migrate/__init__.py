"""`rnncells migrate`: rewrites code for the recurrent API of Flax <= 0.6.11.

Files are parsed, never run, and edited by spans of their text, so that every byte that
need not change stays. A rewrite that is not provably the same is not made: the line is
marked with a comment, `TODO(rnncells)`, and named in the summary.
"""

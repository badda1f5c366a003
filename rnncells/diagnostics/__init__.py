"""What a recurrence computes and how gradients flow through it, for looking at.

All functions are pure: they take arrays and return arrays, under `jit` too, and they
need no change of a cell. `rnncells.plots` draws what they return.
"""

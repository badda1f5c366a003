"""Gradients of a recurrence that are carried forward in time, row by row.

Enters: the step of one row as a function of real vectors (`recurrence/rows.py`) and
a method that updates its influence (`influence.py`, `uoro.py`). Leaves: the values
of the engine, and for a gradient the cotangents of weights, inputs and first carry.
"""

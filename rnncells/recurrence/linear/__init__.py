"""Recurrences that are linear in their carry, solved for many steps at once.

Enters: coefficients of all steps, `c_t = a_t c_{t-1} + b_t` (`elementwise.py`) or keys,
values and gates of a matrix state (`matrix_state.py`), and the first carry. Leaves: the
carries of all steps, or what the queries read of them.
"""

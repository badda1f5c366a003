"""The engine: a recurrence whose weight gradients are formed after its backward loop.

Enters: a step as a pure function, `step(consts, carry, x) -> (carry, output)`
(`split_step.py`); a plan of what to save (`memory.py`); weights, the first carry and
the inputs of all steps (`run.py`). Leaves: the last carry and the outputs of all steps,
and for a gradient the cotangents of all that entered.
"""

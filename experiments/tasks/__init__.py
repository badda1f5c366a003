"""The tasks by the names that configs give them.

A task is a module with `SYMBOLS` or a number of inputs, `outputs(options)`, and
`sample(options, key)`, a pure function of JAX that makes one sequence.
"""

from experiments.tasks import temporal_order

TASKS = {"temporal-order": temporal_order}

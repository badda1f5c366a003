"""The tasks by the names that configs give them.

A task is a module with `INPUTS`, the number of its symbols; `outputs(options)`, the
number of its classes; and `sample(options, key)`, a pure function of JAX that makes one
sequence with `symbols`, `length` and `label`. Its options are a dataclass in
`experiments/config.py`, where `TASK_OPTIONS` names it too.
"""

from experiments.tasks import temporal_order

TASKS = {"temporal-order": temporal_order}

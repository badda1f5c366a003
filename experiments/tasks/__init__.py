"""The tasks by the names that configs give them.

A task has `inputs(options)` and `outputs(options)`, the numbers of units, and
`sample(options, key)`, a pure function of JAX that makes one `Sequence`, padded to
`longest(options)` steps. `jax.vmap` makes many. Its options are a dataclass in
`experiments/task_options.py`, where `TASK_OPTIONS` names it too.

>>> import jax
>>> from experiments.task_options import MarkedPairs
>>> from experiments.tasks import TASKS
>>> adding = TASKS["marked-pairs"]
>>> keys = jax.random.split(jax.random.key(0), 5)
>>> batch = jax.vmap(lambda key: adding.sample(MarkedPairs(length=50), key))(keys)
>>> batch.inputs.shape, batch.target.shape
((5, 55, 2), (5, 1))
"""

from experiments.tasks import (
    long_lags,
    marked_pairs,
    reber,
    temporal_order,
    two_classes,
)

TASKS = {
    "embedded-reber": reber,
    "long-lags": long_lags.between,
    "very-long-lags": long_lags.trigger,
    "two-classes": two_classes,
    "marked-pairs": marked_pairs,
    "temporal-order": temporal_order,
}
# Tasks whose inputs are symbols, and those with an error at every step.
SYMBOLIC = {"embedded-reber", "long-lags", "very-long-lags", "temporal-order"}
ALONG = {"embedded-reber", "long-lags"}

"""The tasks, by their names in configs.

A task is a module with its name. `inputs(options)` and `outputs(options)` return the
numbers of units. `sample(options, key)` is a pure JAX function that returns one
`Sequence`, padded to `longest(options)` steps. The options of a task are a subclass of
`PaperTask` in `experiments/settings/tasks.py`.

Use `jax.vmap` to draw many sequences and to judge a network's outputs. Everything after
a sequence's `length` is padding, which can look like symbols. To get the options of a
row of the paper, use `read_config(config_path("adding-4-1")).task` with both functions
from `experiments.settings.reading`. To get the fixed sets of the Reber grammar, use
`experiments.paper1997.tasks.reber_sets.draw_sets`.

>>> import jax
>>> import jax.numpy as jnp
>>> from experiments.settings.tasks import MarkedPairs
>>> from experiments.paper1997.tasks import TASKS
>>> adding, options = TASKS["marked-pairs"], MarkedPairs(length=50)
>>> keys = jax.random.split(jax.random.key(0), 2560)
>>> batch = jax.vmap(lambda key: adding.sample(options, key))(keys)
>>> batch.inputs.shape, batch.target.shape
((2560, 55, 2), (2560, 1))
>>> y = jnp.full((2560, 1), 0.5)  # a network's outputs
>>> error, is_right = jax.vmap(lambda one, y: one.judge(y, tolerance=0.04))(batch, y)
>>> print(f"{error.mean():.1f}, {is_right.mean():.1f} right")
0.2, 0.2 right
"""

from importlib import import_module

from experiments.settings.tasks import TASK_OPTIONS

TASKS = {
    name: import_module(f"{__name__}.{name.replace('-', '_')}") for name in TASK_OPTIONS
}

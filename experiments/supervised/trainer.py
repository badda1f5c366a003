"""The compiled programs of the training on a data set.

All networks of a run train at once: every array of the state has a first axis `seeds`.
On several devices, each device computes a part of every batch. The arrays that a batch
shares, such as the parameters, are on all devices.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised
from experiments.supervised.optimizer import optimizer_of
from experiments.supervised.task import Array, Task
from experiments.supervised.tasks import TASKS

# In place of infinity, so that `jax_debug_infs` finds only mistakes.
NO_LOSS = float(jnp.finfo(jnp.float32).max)


class State(NamedTuple):
    """The state of training; every array has a first axis `seeds`.

    Attributes:
      params: the parameters.
      optimizer: the state of the optimizer.
      average: moving average of the parameters, which is tested; None without one.
      carry: what one batch hands to the next, see `Task.initial_carry`.
      best: the parameters to test after training, see `training.tested`.
      best_loss: the smallest validation loss.
      best_update: number of updates before `best`.
      waited: number of evaluations since `best_loss`.
    """

    params: Any
    optimizer: Any
    average: Any
    carry: Any
    best: Any
    best_loss: Array
    best_update: Array
    waited: Array


class Trainer:
    """Trains and evaluates the networks of an experiment.

    Args:
      experiment: the config.
      task: the task; default: that of the config.
      devices: the devices to train on; default: all. The largest number of them that
        divides the batch is used.

    Raises:
      ConfigError: the network cannot be built, or several processes cannot share the
        batch.
    """

    def __init__(
        self,
        experiment: Supervised,
        task: Task | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        self.experiment = experiment
        self.task = TASKS[experiment.task.name](experiment) if task is None else task
        self.optimizer = optimizer_of(experiment.optimizer, experiment.training.updates)
        self.keeps_last = experiment.training.tested == "last"
        self.root = jax.random.key(experiment.seed)
        devices = jax.devices() if devices is None else devices
        sizes = range(1, len(devices) + 1)
        count = max(n for n in sizes if experiment.training.batch % n == 0)
        if jax.process_count() > 1 and count < len(devices):
            raise ConfigError(
                f"`training.batch` must be a multiple of the {len(devices)} devices of "
                f"all processes, got {experiment.training.batch}."
            )
        self.mesh = jax.sharding.Mesh(np.array(devices[:count]), ("data",))
        try:
            self.shapes: State = jax.eval_shape(self._init)
        except ValueError as error:
            text = f"the network cannot be built: {error}"
            if experiment.model.forget_bias:
                text += " Pass --model.forget-bias 0 for a cell without a forget gate."
            raise ConfigError(text) from error

    @cached_property
    def data(self) -> Any:
        """The arrays of the task, on all devices."""
        return jax.device_put(self.task.data, self._sharding())

    def _sharding(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def keys(self, seed: Array) -> tuple[Array, Array, Array]:
        """Returns the keys of one network: for its parameters, data and losses."""
        keys = jax.random.split(jax.random.fold_in(self.root, seed), 3)
        return keys[0], keys[1], keys[2]

    def shardings(self, state: State) -> State:
        """Returns the shardings of the state: carries are sharded by `batch`."""
        shardings = jax.tree.map(lambda _: self._sharding(), state)
        carry = jax.tree.map(lambda _: self._sharding(None, "data"), state.carry)
        return shardings._replace(carry=carry)

    def init(self) -> State:
        """Returns the state before the first update."""
        return self._compiled_init()

    @cached_property
    def _compiled_init(self) -> Callable[[], State]:
        return jax.jit(self._init, out_shardings=self.shardings(self.shapes))

    def _init(self) -> State:
        def one(seed: Array) -> State:
            params = self.task.init(self.keys(seed)[0])
            has_average = self.experiment.optimizer.ema > 0
            return State(
                params,
                self.optimizer.init(params),
                params if has_average else None,
                self.task.initial_carry(),
                params,
                jnp.float32(NO_LOSS),
                jnp.int32(0),
                jnp.int32(0),
            )

        return self._over_seeds(one, jnp.arange(self.experiment.seeds))

    def _over_seeds(self, f: Callable, *arguments: Any) -> Any:
        """Maps a function over the first axis; without `vmap` where it has size 1."""
        if self.experiment.seeds > 1:
            return jax.vmap(f)(*arguments)
        one = f(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], one)

    @partial(jax.jit, static_argnums=(0, 4), donate_argnums=1)
    def advance(
        self, state: State, data: Any, start: Array, count: int
    ) -> tuple[State, Array]:
        """Trains on the next batches.

        Args:
          state: the state; its arrays are donated.
          data: the arrays of the task.
          start: number of updates before.
          count: number of updates.

        Returns:
          The state, and the losses before each update, `(count, seeds)`.
        """

        def update(state: State, number: Array) -> tuple[State, Array]:
            seeds = jnp.arange(self.experiment.seeds)
            one = partial(self._update, data, number)
            return self._over_seeds(one, state, seeds)

        state, losses = jax.lax.scan(update, state, start + jnp.arange(count))
        constrain = jax.lax.with_sharding_constraint
        return jax.tree.map(constrain, state, self.shardings(state)), losses

    def _update(
        self, data: Any, number: Array, state: State, seed: Array
    ) -> tuple[State, Array]:
        """Trains one network on one batch; returns the new state and the loss."""
        _, data_key, loss_key = self.keys(seed)
        batch = jax.tree.map(self._split, self.task.batch(data, data_key, number))

        def loss(params):
            key = jax.random.fold_in(loss_key, number)
            return self.task.loss(params, batch, state.carry, key, number)

        (value, carry), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        changes, optimizer = self.optimizer.update(
            gradient, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, changes)
        new = state._replace(
            params=params,
            optimizer=optimizer,
            average=self._averaged(state.average, params, number + 1),
            carry=jax.lax.stop_gradient(carry),
        )
        return new, value

    def _split(self, leaf: Array) -> Array:
        """Lets each device have a part of an array, if its first axis can be split."""
        if leaf.ndim == 0 or leaf.shape[0] % self.mesh.size:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, self._sharding("data"))

    def _averaged(self, average: Any, params: Any, updates: Array) -> Any:
        """Returns the moving average of the parameters, which follows fast at first.

        It moves when the parameters change: at every `accumulate`-th update.

        Args:
          average: the average before; None without one.
          params: the parameters after the update.
          updates: number of updates, with this one.
        """
        if average is None:
            return None
        optimizer = self.experiment.optimizer
        changes = updates // optimizer.accumulate
        # 1/10 at the first change.
        decay = jnp.minimum(optimizer.ema, changes / (9 + changes))
        decay = jnp.where(updates % optimizer.accumulate == 0, decay, 1.0)
        # As the parameters, also if JAX has 64-bit types.
        return optax.incremental_update(params, average, jnp.float32(1 - decay))

    @partial(jax.jit, static_argnums=0)
    def validate(
        self, state: State, data: Any, update: Array
    ) -> tuple[State, dict[str, Array]]:
        """Evaluates on the validation split, and keeps the best parameters.

        Args:
          state: the state.
          data: the arrays of the task.
          update: number of updates before.

        Returns:
          The state, and the metrics, `(seeds, ...)`.
        """

        def one(state: State) -> tuple[State, dict[str, Array]]:
            tested = state.params if state.average is None else state.average
            metrics = self.task.evaluate(tested, data, "validation")
            is_best = metrics["loss"] < state.best_loss
            choose = partial(jnp.where, is_best)
            keep = partial(jnp.where, is_best | self.keeps_last)
            new = state._replace(
                best=jax.tree.map(keep, tested, state.best),
                best_loss=choose(jnp.float32(metrics["loss"]), state.best_loss),
                best_update=keep(jnp.int32(update), state.best_update),
                waited=choose(0, state.waited + 1),
            )
            return new, metrics

        state, metrics = self._over_seeds(one, state)
        constrain = jax.lax.with_sharding_constraint
        return jax.tree.map(constrain, state, self.shardings(state)), metrics

    @partial(jax.jit, static_argnums=(0, 3))
    def evaluate(self, params: Any, data: Any, split: str) -> dict[str, Array]:
        """Returns the metrics of all networks on a split, `(seeds, ...)`."""
        return self._over_seeds(
            lambda params: self.task.evaluate(params, data, split), params
        )

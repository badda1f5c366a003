"""Random streams of a cell, as arrays that a loop over time can take."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import LazyRng

KeyData = dict[str, jax.Array]


class RngStreams(NamedTuple):
    """The available random streams among those that `RNN.rng_streams` names.

    They yield the same keys as `flax.linen.scan`. Keys are stored as raw key data,
    because the arrays of the loop must be numeric.

    Attributes:
      fixed: keys of the streams that are the same at each step.
      stepwise: keys of the streams that differ at each step, `(time, ...)`.
      like: Flax's streams outside the loop, by name.
    """

    fixed: KeyData
    stepwise: KeyData
    like: Mapping[str, LazyRng]

    def rngs(self, *data: KeyData) -> dict[str, LazyRng]:
        """Converts the keys of one step to streams for `apply`."""
        streams = {}
        for name, raw in (item for keys in data for item in keys.items()):
            like = self.like[name]
            streams[name] = LazyRng(key_like(raw, like.rng), like.suffix)
        return streams


def available_streams(rnn: nn.Module, steps: int) -> RngStreams:
    """Returns the streams of a layer's cell for `steps` steps."""
    fixed, stepwise, like = {}, {}, {}
    for name, is_split in rnn.rng_streams.items():
        if name == "params" or name not in rnn.cell.scope.rngs:
            continue
        like[name] = rnn.cell.scope.rngs[name]
        key = like[name].rng
        if is_split:
            stepwise[name] = key_data(jax.random.split(key, steps))
        else:
            fixed[name] = key_data(key)
    return RngStreams(fixed, stepwise, like)


def count_draws(
    cell: nn.Module,
    take_step: Callable,
    counters: dict,
    variables: Any,
    carry: Any,
    inputs: Any,
    rngs: Any,
) -> dict:
    """Returns the counters of a cell's random draws after one step from `counters`.

    `flax.linen.scan` traces a step twice and keeps counting draws from the first trace
    to the second. Drawing the same numbers needs the same counts.
    """
    counters_after: dict = {}

    def call(cell: Any, carry: Any, inputs: Any) -> Any:
        set_counters(counters, cell.scope.rng_counters)
        result = take_step(cell, carry, inputs)
        counters_after.update(cell.scope.rng_counters)
        return result

    def step(variables: Any, carry: Any, inputs: Any) -> Any:
        return cell.apply(variables, carry, inputs, method=call, rngs=rngs)

    jax.eval_shape(step, variables, carry, inputs)
    return copied(counters_after)


def total_draws(counters: dict) -> int:
    """Returns the number of random draws that counters have counted."""
    # The keys cannot be sorted, so the dictionary is no pytree.
    values = counters.values()
    return sum(total_draws(v) if isinstance(v, dict) else v for v in values)


def set_counters(counters: dict, target: dict) -> None:
    """Sets a scope's counters in place, because submodules may refer to them."""
    for key, value in counters.items():
        if isinstance(value, dict):
            set_counters(value, target.setdefault(key, {}))
        else:
            target[key] = value


def rewind(counters: dict, before: dict) -> None:
    """Sets a scope's counters in place to those of `copied` before."""
    for key, value in counters.items():
        if isinstance(value, dict):
            rewind(value, before.get(key, {}))
        else:
            counters[key] = before.get(key, 0)


def copied(counters: dict) -> dict:
    """Returns a deep copy of counters, including those of submodules."""
    return {
        key: copied(value) if isinstance(value, dict) else value
        for key, value in counters.items()
    }


def key_data(keys: chex.PRNGKey) -> jax.Array:
    """Returns the raw data of keys."""
    return jax.random.key_data(keys) if is_key(keys) else keys


def key_like(raw: jax.Array, key: chex.PRNGKey) -> chex.PRNGKey:
    """Returns raw data as a key of the same form as another key."""
    if not is_key(key):
        return raw
    return jax.random.wrap_key_data(raw, impl=jax.random.key_impl(key))


def is_key(array: Any) -> bool:
    """Says whether an array has typed random keys."""
    return jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key)

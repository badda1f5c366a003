"""A loop in which the outputs of a step are the inputs of the next one.

The inputs of the next step are a part of the carry, so the loops of RNN run it.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree, PRNGKey
from flax.errors import InvalidRngError
from jax import Array

from rnncells._checks import check_count, check_key
from rnncells.cells.contract.any_cell import apply_step
from rnncells.cells.contract.carry import Carry, dtype_of
from rnncells.flax_internals import key_data, key_like
from rnncells.gradients import Bptt
from rnncells.loops import table
from rnncells.loops.request import StepRequest
from rnncells.recurrence.masks import select
from rnncells.recurrence.pytrees import structs
from rnncells.recurrence.schedule import Call, Results, move_axis, prepare

RNG_STREAM = "teacher_forcing"
_KINDS: dict[str, Any] = {
    "bool": jnp.bool_,
    "int": jnp.integer,
    "float": jnp.floating,
    "complex": jnp.complexfloating,
}


class Feedback(NamedTuple):
    """The source of the inputs of each step: outputs, `feed` and targets."""

    steps: int
    feed: Callable | None  # None: the outputs are the next inputs
    feed_key: PRNGKey | None  # is split into one for each call of `feed`
    targets: ArrayTree | None  # inputs after each step, `(time, *batch, ...)`
    rate: Any  # probability that a row sees a target: a number or an array


class DecodingInputs(NamedTuple):
    """The inputs of one step of `decode`, or of all steps with time first."""

    number: Array  # of the step
    key: Any  # raw data of the key of `feed`, or None
    target: ArrayTree | None  # inputs after the step
    forced: Any  # `(*batch,)`, true for rows that see the target, or None


def check_decodes(rnn: Any) -> None:
    """Raises ValueError unless a layer goes forward, with the default gradient."""
    if rnn.reverse:
        raise ValueError("`decode` of RNN needs `reverse=False`, got True.")
    if rnn.gradient != Bptt():
        raise ValueError(
            "`decode` of RNN needs gradient=Bptt() without a `carry_hook`, got "
            f"{table.shown({'gradient': rnn.gradient})}. Decode with RNN(cell) "
            "and the same parameters."
        )


def decode(rnn: nn.Module, feedback: Feedback, carry: Carry, call: Call) -> Results:
    """Returns the results of decoding; the outputs are `(outputs, inputs)`.

    `call` is that of the first step. The inputs are those after every step. Time is
    first.
    """
    targets, deterministic = feedback.targets, call.deterministic
    if targets is not None and _is_known(feedback.rate) and feedback.rate == 1:
        inputs = jax.tree.map(
            lambda x, t: jnp.concatenate([x, t[:-1]]), call.inputs, targets
        )
        step = partial(apply_step, deterministic=deterministic)
        results = _run(rnn, step, call._replace(inputs=inputs), carry)
        return results._replace(outputs=(results.outputs, targets))
    step = partial(_step, feedback, deterministic=deterministic)
    first = jax.tree.map(lambda leaf: leaf[0], call.inputs)
    steps, key = feedback.steps, feedback.feed_key
    keys = None if key is None else key_data(jax.random.split(key, steps))
    forced = None
    if targets is not None:
        forced = _draws(rnn, feedback.rate, (steps, *call.batch))
    inputs = DecodingInputs(jnp.arange(steps), keys, targets, forced)
    results = _run(rnn, step, call._replace(inputs=inputs), (carry, first))
    carries = None if results.carries is None else results.carries[0]
    return results._replace(carry=results.carry[0], carries=carries)


def _run(rnn: Any, step: Callable, call: Call, carry: Any) -> Results:
    """Runs the fast or the plain loop; other loops need all inputs in advance."""
    is_scan = rnn.implementation == "scan"
    options = {"implementation": "scan" if is_scan else "auto"}
    plan = prepare(call, carry)
    request = StepRequest(rnn, plan.carry, plan.xs, step, plan.body, None, options)
    return plan.results(*table.run(request, (table.FAST, table.PLAIN)))


def _draws(rnn: nn.Module, rate: Any, shape: tuple[int, ...]) -> Array:
    """Draws the mask of the rows that see their targets, for each step."""
    if rnn.is_initializing() or (_is_known(rate) and rate == 0):
        return jnp.zeros(shape, bool)
    if not rnn.has_rng(RNG_STREAM):
        raise InvalidRngError(
            f"`teacher_forcing_rate` of `decode` needs a random key for "
            f'`{RNG_STREAM}`, unless it is 0 or 1. Pass rngs={{"{RNG_STREAM}": key}} '
            "to `apply`."
        )
    return jax.random.bernoulli(rnn.make_rng(RNG_STREAM), rate, shape)


def _step(
    feedback: Feedback,
    cell: nn.Module,
    carry: tuple[Carry, ArrayTree],
    x: DecodingInputs,
    deterministic: bool | None,
) -> tuple[tuple[Carry, ArrayTree], tuple[ArrayTree, ArrayTree]]:
    """Applies a cell whose carry is its own and its next inputs."""
    state, inputs = carry
    state, output = apply_step(cell, state, inputs, deterministic)
    following = output
    if feedback.feed is not None and feedback.feed_key is not None:
        following = feedback.feed(output, key_like(x.key, feedback.feed_key))
    elif feedback.feed is not None:
        following = feedback.feed(output)
    following = _as_inputs(following, inputs, type(cell).__name__, feedback.feed)
    if x.target is not None:
        following = select(x.forced, x.target, following)
    return (state, following), (output, following)


def _as_inputs(
    following: Any, inputs: ArrayTree, cell: str, feed: Callable | None
) -> ArrayTree:
    """Returns the next inputs in the dtypes of the first, after checking their form."""
    if _form(following) != _form(inputs):
        source, hint = "`feed` returned", ""
        if feed is None:
            source = f"the outputs of {cell} are"
            hint = (
                " Pass `feed`, a function from outputs to inputs, or end the cell with "
                "a layer of this width: StackedCell([cell, nn.Dense(width)])."
            )
        raise ValueError(
            "The next inputs in `decode` must have the form of `first_input`, "
            f"{_form(inputs)}, but {source} {_form(following)}.{hint}"
        )
    return jax.tree.map(
        lambda new, old: jnp.asarray(new, dtype_of(old)), following, inputs
    )


def _form(tree: ArrayTree) -> str:
    """Returns the structure of a pytree with the kind and the shape of each array."""

    def form(leaf: Any) -> str:
        dtype = dtype_of(leaf)
        names = [name for name, kind in _KINDS.items() if jnp.issubdtype(dtype, kind)]
        return f"{(*names, dtype)[0]}{jnp.shape(leaf)}"

    return str(jax.tree.map(form, tree)).replace("'", "")


def check_feedback(
    call: Call,
    axis: int,
    steps: Any,
    feed: Any,
    feed_key: Any,
    targets: Any,
    rate: Any,
) -> Feedback:
    """Returns the arguments of `RNN.decode` as a `Feedback`, or raises an error.

    `call` is that of the first step, and `axis` the position of time in the targets.
    """
    if steps is not None:
        check_count("decode", "steps", steps)
    if targets is None and steps is None:
        raise TypeError(
            "`decode` needs `steps`, or `targets`, which has as many steps."
        )
    _check_feed(feed, feed_key)
    if targets is None:
        if rate is not None:
            raise ValueError(
                "`teacher_forcing_rate` of `decode` needs `targets`, got None. Pass "
                "the inputs after each step, (*batch, steps, *features)."
            )
        return Feedback(steps, feed, feed_key, None, 0)
    targets = jax.tree.map(jnp.asarray, targets)
    return Feedback(
        _check_targets(call.sample, axis, steps, targets),
        feed,
        feed_key,
        jax.tree.map(
            lambda leaf, like: leaf.astype(like.dtype),
            move_axis(targets, axis, 0),
            call.sample,
        ),
        _check_rate(1 if rate is None else rate),
    )


def _check_feed(feed: Any, feed_key: Any) -> None:
    """Raises an error unless `feed` takes the outputs, and a key if there is one."""
    if feed is None:
        if feed_key is not None:
            raise ValueError("`feed_key` of `decode` needs `feed`, got None.")
        return
    if isinstance(feed, nn.Module) or not callable(feed):
        raise TypeError(
            "`feed` of `decode` must be a function of arrays, got "
            f"{type(feed).__name__}. Put "
            "modules into the cell: StackedCell([nn.Embed(...), cell, nn.Dense(...)])."
        )
    check_key(feed_key, "`feed_key` of `decode`")
    try:
        inspect.signature(feed).bind(*[None] * (1 if feed_key is None else 2))
    except TypeError as error:
        raise TypeError(
            "`feed` of `decode` must take the outputs, feed(outputs), or with "
            "`feed_key`, a random key, feed(outputs, key). `feed_key` is "
            f"{'not ' if feed_key is None else ''}given, and `feed`: {error}."
        ) from error
    except ValueError:  # functions without a signature
        pass


def _check_targets(
    first: ArrayTree, axis: int, steps: int | None, targets: ArrayTree
) -> int:
    """Returns the number of steps, or raises ValueError if `targets` do not fit."""
    leaves = jax.tree.leaves(targets)
    has_time = all(leaf.ndim > axis for leaf in leaves) and bool(leaves)
    count: Any = leaves[0].shape[axis] if steps is None and has_time else steps
    without_time = structs(targets, drop_axis=axis)
    is_alike = has_time and _form(without_time) == _form(first)
    if not is_alike or any(leaf.shape[axis] != count for leaf in leaves):
        raise ValueError(
            "`targets` of `decode` must be like `first_input` with a time axis "
            f"{'' if count is None else f'of size {count} '}at position {axis}, "
            f"{_form(first)}, got {_form(targets)}. (`time_major` sets the position.)"
        )
    check_count("decode", "steps", count)
    return count


def _check_rate(rate: Any) -> Any:
    is_number = isinstance(rate, int | float | np.number | np.ndarray | Array)
    if isinstance(rate, bool) or not is_number or jnp.shape(rate) != ():
        raise TypeError(
            f"`teacher_forcing_rate` of `decode` must be a number or a scalar array, "
            f"got {rate!r}."
        )
    if _is_known(rate) and not 0 <= rate <= 1:
        raise ValueError(
            f"`teacher_forcing_rate` of `decode` must be in [0, 1], got {rate}."
        )
    return rate


def _is_known(rate: Any) -> bool:
    return not isinstance(rate, jax.core.Tracer)

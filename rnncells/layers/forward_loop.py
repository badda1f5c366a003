"""The loop of a layer whose gradient is carried forward in time."""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rnncells.cells.any_cell import feature_dims
from rnncells.gradients import ForwardGradient, Gradient
from rnncells.layers.loops import (
    FAST_LOOP_OPTIONS,
    PureStep,
    fast_loop,
    plain_loop,
    run_fast,
    take_apart,
)
from rnncells.layers.rng_streams import count_from
from rnncells.recurrence.chunks import Segment, cut
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import (
    Rest,
    Row,
    RowStep,
    join,
    mark_carry,
    real_leaves,
)
from rnncells.recurrence.pytrees import (
    StructTree,
    Tree,
    combine,
    inexact,
    is_inexact,
    partition,
    structs,
)

_DIRECTIONS = ("forward", "backward")


def loop_over_time(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns the loop of a layer: forward in time by its `gradient`, or `fast_loop`.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `step_of`.
    """
    if isinstance(rnn.gradient, ForwardGradient):
        return forward_loop(rnn, axis, step)
    if has_hook(rnn.gradient):
        # The fast loop would drop the side effects of a hook, such as a callback.
        return plain_loop(rnn, axis, step)
    return fast_loop(rnn, axis, step)


def has_hook(gradient: Gradient) -> bool:
    """Says whether a method has a hook on every carry."""
    return getattr(gradient, "carry_hook", None) is not None


def check_gradient(rnn: nn.Module) -> None:
    """Raises an error unless `gradient` of a layer fits its other options."""
    name = type(rnn).__name__
    if not isinstance(rnn.gradient, Gradient):
        hint = ""
        if isinstance(rnn.gradient, type) and issubclass(rnn.gradient, Gradient):
            hint = f" Call the class: {rnn.gradient.__name__}(...)."
        raise TypeError(
            f"`gradient` of {name} must be a method of rnncells.gradients, such as "
            f"Bptt(), got {rnn.gradient!r}.{hint}"
        )
    if isinstance(rnn.gradient, ForwardGradient):
        options = FAST_LOOP_OPTIONS | {"implementation": "auto"}
        why = f"gradient={rnn.gradient} of {name} saves nothing for the gradient"
    elif has_hook(rnn.gradient):
        options = FAST_LOOP_OPTIONS
        why = f"`carry_hook` of {name} needs the plain loop, which has no such option"
    else:
        return
    for option, default in options.items():
        if getattr(rnn, option) != default:
            raise ValueError(
                f"{why}, so `{option}` must be {default!r}, got "
                f"{getattr(rnn, option)!r}."
            )


def check_depth(owner: str, layer: nn.Module) -> None:
    """Raises ValueError if the gradient of a layer is carried forward in time.

    Args:
      owner: name of the module that has another recurrent layer below it.
      layer: the layer.
    """
    directions = [getattr(layer, f"{side}_rnn", None) for side in _DIRECTIONS]
    for rnn in filter(None, (layer, *directions)):
        gradient = getattr(rnn, "gradient", None)
        if isinstance(gradient, ForwardGradient):
            raise ValueError(
                f"gradient={gradient} needs {owner} to have one recurrent layer: the "
                "layers below would get a biased gradient. Put all cells into one "
                f"cell, RNN(StackedCell([...]), gradient={gradient}), or use Bptt()."
            )


def forward_loop(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns a loop over time whose gradient is that of the layer's forward method.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `step_of`.
    """
    plain = plain_loop(rnn, axis, step)
    if rnn.is_initializing():
        return plain

    def loop(body, reset_carry, carry, xs):
        by_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        (first, *_) = jax.tree.leaves(by_time)
        if first.shape[0] == 0:
            return plain(body, reset_carry, carry, xs)
        pure = pure_step(rnn, carry, by_time, body, reset_carry, marked(step))
        count_from(pure.counters, rnn.cell.scope.rng_counters)
        rows = Batch(first.shape[1 : first.ndim - feature_dims(rnn.cell)])
        check_independent_rows(type(rnn.cell).__name__, rows, pure, carry)
        carry, (ys, _) = _run(rnn, rows, pure, carry)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def pure_step(rnn: nn.Module, carry: tuple, xs: tuple, *how: Callable) -> PureStep:
    """Returns the step of a layer's cell, or raises an error; see `take_apart`."""
    pure, reason = take_apart(rnn, carry, xs, *how)
    method = f"gradient={rnn.gradient} of RNN"
    names = ("random_", "threefry", "rng_")
    draws = reason is not None and reason.startswith("needs each random stream")
    if pure is not None:
        equations = pure.step.jaxpr.eqns
        draws = any(e.primitive.name.startswith(names) for e in equations)
    if draws:
        raise ValueError(
            f"{method} needs a step that draws no random numbers, got "
            f"{type(rnn.cell).__name__}. Pass deterministic=True, or use Bptt."
        )
    if pure is None:
        raise ValueError(
            f"{method} needs the step as a pure function, which {reason} Use "
            "gradient=Bptt() for this cell."
        )
    return pure


def marked(step: Callable) -> Callable:
    """Returns a step that marks the carry after it."""

    def call(cell, carry, inputs):
        carry, output = step(cell, carry, inputs)
        return mark_carry(carry), output

    return call


class Batch(NamedTuple):
    """The batch axes of a layer, and the same rows on one axis.

    Attributes:
      sizes: of the batch axes.
    """

    sizes: tuple[int, ...]

    def to_rows(self, tree: chex.ArrayTree, lead: int = 0) -> chex.ArrayTree:
        """Returns `(rows, 1, ..., *features)` of `(*batch, *features)`.

        Args:
          tree: pytree of arrays.
          lead: number of axes before the batch axes.
        """
        ones = (1,) * len(self.sizes)

        def rows(leaf):
            end = lead + len(self.sizes)
            if leaf.shape[lead:end] != self.sizes:
                raise ValueError(
                    "A forward method of `gradient` needs a cell whose carry has the "
                    f"batch axes {self.sizes} first, got the shape {leaf.shape}."
                )
            shape = (*leaf.shape[:lead], self.count, *ones, *leaf.shape[end:])
            return leaf.reshape(shape)

        return jax.tree.map(rows, tree)

    def from_rows(self, tree: chex.ArrayTree, lead: int = 0) -> chex.ArrayTree:
        """Reverses `to_rows`."""
        end = lead + 1 + len(self.sizes)
        return jax.tree.map(
            lambda leaf: leaf.reshape(
                (*leaf.shape[:lead], *self.sizes, *leaf.shape[end:])
            ),
            tree,
        )

    def repeated(self, tree: chex.ArrayTree, lead: int = 0) -> chex.ArrayTree:
        """Returns arrays that are the same for all rows with an axis of rows."""

        def repeat(leaf):
            shape = (*leaf.shape[:lead], self.count, *leaf.shape[lead:])
            return jnp.broadcast_to(jnp.expand_dims(leaf, lead), shape)

        return jax.tree.map(repeat, tree)

    @property
    def count(self) -> int:
        """Number of rows."""
        return math.prod(self.sizes)


class RowsOf(NamedTuple):
    """A layer's step and operands, row by row.

    Attributes:
      step: the step of a row.
      operands: what is differentiated.
      others: what is not.
    """

    step: RowStep
    operands: forward.Operands
    others: forward.Others


def check_independent_rows(
    name: str, batch: Batch, pure: PureStep, carry: chex.ArrayTree
) -> None:
    """Raises ValueError if a row of a step depends on other rows of the batch.

    Args:
      name: name of the cell.
      batch: the batch axes.
      pure: the step.
      carry: before the first step, `(*batch, ...)`.
    """
    if not batch.sizes:
        return
    # Two rows along each axis show any dependence, at random values.
    small, count = Batch((2,) * len(batch.sizes)), 2 ** len(batch.sizes)

    def few(tree, lead=0):
        def struct(leaf):
            shape = leaf.shape[lead + len(batch.sizes) :]
            return jax.ShapeDtypeStruct((*small.sizes, *shape), leaf.dtype)

        return jax.tree.map(struct, tree)

    shared, keys = structs(pure.given[0]), structs(pure.now[1], drop_axis=0)
    rows = few(pure.given[1]), few(carry), few(pure.now[0], 1)
    numbers = np.random.default_rng(0)
    shared, keys, rows = jax.tree.map(
        lambda leaf: _like(leaf, numbers), (shared, keys, rows)
    )
    others = partition(rows)[1]

    @jax.jit
    @jax.jacrev
    def derivatives(varied):
        own, carry, xs = combine(varied, others)
        found = pure.function((shared, own), carry, (xs, keys))
        leaves = jax.tree.leaves(inexact(found))
        return sum(jnp.abs(leaf).reshape(count, -1).sum(1) for leaf in leaves)

    try:
        with jax.ensure_compile_time_eval():
            found = jax.tree.leaves(derivatives(inexact(rows)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "A forward method of `gradient` needs a cell that runs with any batch "
            "axes, and every array of its carry must begin with them, got "
            f"{name}, which fails with the axes {small.sizes}: {error}"
        ) from error
    for derivative in map(np.asarray, found):
        depends = np.isfinite(derivative) & (derivative != 0)
        by_row = depends.reshape(count, count, -1).any(-1)
        if (by_row & ~np.eye(count, dtype=bool)).any():
            raise ValueError(
                "A forward method of `gradient` needs a cell that computes each row of "
                f"the batch by itself, got {name}, whose rows depend on each other. "
                "Use gradient=Bptt()."
            )


def _like(struct, numbers):
    """Returns random numbers of a shape and dtype; zeros of other dtypes."""
    if not is_inexact(struct):
        return np.zeros(struct.shape, struct.dtype)
    return numbers.standard_normal(struct.shape).astype(struct.dtype)


def by_rows(batch: Batch, pure: PureStep, carry: chex.ArrayTree) -> RowsOf:
    """Returns the step and the operands of a layer, row by row."""
    shared, own = pure.given[0], batch.to_rows(pure.given[1])
    xs, keys = pure.now
    now = batch.to_rows(xs, 1), batch.repeated(keys, 1)
    carry = batch.to_rows(carry)

    def function(shared, own, carry, now):
        return pure.function((shared, own), carry, now)

    def of_row(tree: Tree) -> StructTree:
        return structs(tree, drop_axis=0)

    row = Row(of_row(own), of_row(carry), structs(of_row(now), drop_axis=0))
    update = xs[2] if len(xs) > 2 else None
    is_held = None if update is None else (lambda now: ~now[0][2])
    step = RowStep(function, structs(shared), row, is_held)
    operands = forward.Operands(
        real_leaves(shared),
        real_leaves(own),
        jax.vmap(step.vector)(carry),
        inexact(now),
    )
    others = [partition(tree)[1] for tree in (shared, own, carry, now)]
    return RowsOf(step, operands, forward.Others(*others))


def random_keys(rnn: nn.Module, batch: Batch) -> tuple[jax.Array, ...]:
    """Returns a raw random key for each row, if the layer's method draws numbers.

    Values need no key, so a missing one is an error of the gradient alone.
    """
    stream = rnn.gradient.rng_stream
    if stream is None or not rnn.has_rng(stream):
        return ()
    return (jax.random.bits(rnn.make_rng(stream), (batch.count, 2), jnp.uint32),)


def _run(rnn, batch, pure, carry):
    """Returns the last carry and the outputs, `(time, *batch, ...)`."""
    rows = by_rows(batch, pure, carry)
    own_rows = structs(batch.to_rows(pure.given[1]))

    def values(operands, others):
        shared = join(operands.shared, structs(pure.given[0]), others.shared)
        own = batch.from_rows(join(operands.own, own_rows, others.own))
        rest = Rest(None, others.carry)
        carry = batch.from_rows(jax.vmap(rows.step.carry)(operands.s, rest))
        xs, keys = combine(operands.x, others.now)
        keys = jax.tree.map(lambda leaf: leaf[:, 0], keys)
        now = batch.from_rows(xs, 1), keys
        again = pure._replace(given=(shared, own), now=now)
        last, outputs = run_fast(rnn, again, carry)
        return batch.to_rows(last), batch.to_rows(outputs, 1)

    steps, block = jax.tree.leaves(pure.now)[0].shape[0], rnn.gradient.block()
    last, outputs = forward.run(
        values,
        rows.step,
        rnn.gradient.method(rows.step),
        cut(steps, block) if block > 1 else (Segment(0, steps, 1),),
        rows.operands,
        rows.others,
        random_keys(rnn, batch),
    )
    return batch.from_rows(last), batch.from_rows(outputs, 1)

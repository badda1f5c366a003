"""The gradient of the steps of one chunk of time."""

from collections.abc import Callable
from typing import Any

import jax

from rnncells.recurrence import products
from rnncells.recurrence.parts import Arrays, Moment, Recurrence
from rnncells.recurrence.trees import (
    join,
    leaves_read,
    pick,
    rest,
    smooth,
    structs,
    zeros,
)

PyTree = Any


def moment_of(recurrence: Recurrence, arrays: Arrays, flags: PyTree) -> Moment:
    """Returns shapes and dtypes of what a step is taken at."""
    inputs, flags = structs((arrays.inputs, flags), drop_axis=True)
    carry = structs(arrays.carry)
    z = jax.eval_shape(recurrence.project, arrays.params, inputs)
    return jax.eval_shape(
        lambda carry, z, flags: Moment(
            carry, z, _form_values(recurrence, arrays, carry, z, flags)
        ),
        *(carry, z, flags),
    )


def form_values(
    recurrence: Recurrence, arrays: Arrays, carry: PyTree, z: PyTree, flags: PyTree
) -> Moment:
    """Returns the moments of a chunk whose carries are known, all at once."""

    def at(carry, z, flags):
        return _form_values(recurrence, arrays, carry, z, flags)

    return Moment(carry, z, jax.vmap(at)(carry, z, flags))


def _form_values(recurrence, arrays, carry, z, flags):
    forms = [products.plain_form(product) for product in arrays.products]
    _, values = products.formed_by(
        forms, lambda: recurrence.step(arrays.params, arrays.shared, carry, z, flags)
    )
    return values


def moments_read(recurrence: Recurrence, arrays: Arrays, flags: PyTree) -> Moment:
    """Returns, for each leaf of a moment, whether the gradient depends on it."""
    step = _Step(recurrence, arrays, flags)

    def everything(moments, flags, d_new, d_outputs):
        moment, now, d_output = jax.tree.map(
            lambda leaf: leaf[0], (moments, flags, d_outputs)
        )
        pulled = step.pull(moment, now, d_new, d_output)
        d_news = jax.tree.map(lambda leaf: leaf[None], d_new)
        return (
            pulled,
            step.lefts(moments, flags),
            step.pull_others(moments, flags, d_news, d_outputs),
        )

    one = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype),
        (step.moment, step.flags, step.outputs),
    )
    moments, flags, outputs = one
    new = smooth(step.moment.carry)
    return leaves_read(everything, moments, flags, new, smooth(outputs))[0]


def pulling(recurrence: Recurrence, arrays: Arrays, flags: PyTree) -> Callable:
    """Returns the map from the gradients after a chunk to those before it.

    `(inputs, flags, moments, d_carry, d_outputs) -> (d_carry, terms, d_inputs)`, with
    the terms that the chunk adds to the gradients of `(params, products, shared)`; None
    for those it has no part in.
    """
    step = _Step(recurrence, arrays, flags)

    def pull_chunk(inputs, flags, moments, d_carry, d_outputs):
        d_carry, d_z, d_values, d_news = _loop_back(
            step, moments, flags, d_carry, d_outputs
        )
        lefts = step.lefts(moments, flags)
        d_products = [
            _pull_weights(product, left, d_value)
            for product, left, d_value in zip(
                arrays.products, lefts, d_values, strict=True
            )
        ]
        others, d_shared = step.pull_others(moments, flags, d_news, d_outputs)
        d_params, d_inputs = _pull_projection(recurrence, arrays.params, inputs, d_z)
        d_params = jax.tree.map(
            lambda a, b: a if b is None else b if a is None else a + b,
            *(d_params, others),
            is_leaf=lambda leaf: leaf is None,
        )
        return d_carry, (d_params, d_products, d_shared), d_inputs

    return pull_chunk


def _loop_back(step, moments, flags, d_carry, d_outputs):
    """Runs the steps of a chunk from the last to the first.

    Returns the gradient by the carry before the chunk, and, of every step, the
    gradients by `z`, by the values of products, and by the carry after it (None if
    nothing needs it).
    """
    layout = {}

    def one(d_new, now):
        moment, flags, d_output = now
        d_carry, d_z, d_values = step.pull(moment, flags, d_new, d_output)
        # Where z only adds to a product, both have one gradient: it is kept once.
        leaves, tree = jax.tree.flatten((d_z, d_values))
        unique = {id(leaf): leaf for leaf in leaves}
        order = list(unique)
        layout["tree"] = tree
        layout["index"] = [order.index(id(leaf)) for leaf in leaves]
        return d_carry, (list(unique.values()), d_new if step.has_others else None)

    d_carry, (unique, d_news) = jax.lax.scan(
        one,
        d_carry,
        (moments, flags, d_outputs),
        reverse=True,
        unroll=step.recurrence.unroll,
    )
    leaves = [unique[k] for k in layout["index"]]
    d_z, d_values = jax.tree.unflatten(layout["tree"], leaves)
    return d_carry, d_z, d_values, d_news


class _Step:
    """A step, to be differentiated with the values of its products known."""

    def __init__(self, recurrence: Recurrence, arrays: Arrays, flags: PyTree):
        self.recurrence = recurrence
        self.arrays = arrays
        self.pulls = [products.loop_pull(product) for product in arrays.products]
        self.moment = moment_of(recurrence, arrays, flags)
        self.flags = structs(flags, drop_axis=True)
        both = (arrays.params, arrays.shared)
        taps = self.moment.values
        _, self.outputs = jax.eval_shape(
            self._linked, *both, self.moment, taps, self.flags
        )
        reads, *_ = leaves_read(
            lambda both, *now: self._smooth_linked(*both, *now),
            *(both, self.moment, taps, self.flags),
        )
        # Of params and `shared`, what a step reads beside the weights of products.
        self.others = smooth(pick(both, reads))
        self.has_others = bool(jax.tree.leaves(self.others))

    def _linked(self, params, shared, moment, taps, flags):
        return products.linked(
            *(moment.values, taps, self.pulls),
            lambda: self.recurrence.step(params, shared, *moment[:2], flags),
        )

    def _smooth_linked(self, *args):
        return smooth(self._linked(*args))

    def pull(self, moment, flags, d_new, d_output):
        """Returns the gradients by the carry before a step, by z, and by values."""
        params, shared = self.arrays.params, self.arrays.shared
        before = (moment.carry, moment.z)

        def at(varied, taps):
            carry, z = join(varied, rest(before))
            at = Moment(carry, z, moment.values)
            return self._smooth_linked(params, shared, at, taps, flags)

        _, pull = jax.vjp(at, smooth(before), zeros(moment.values))
        (d_carry, d_z), d_values = pull((d_new, d_output))
        return d_carry, d_z, d_values

    def lefts(self, moments, flags):
        """Returns the left sides of the products, at all steps of a chunk."""
        params, shared = self.arrays.params, self.arrays.shared

        def at(moment, flags):
            _, lefts = products.given(
                moment.values,
                lambda: self.recurrence.step(params, shared, *moment[:2], flags),
            )
            return lefts

        return jax.vmap(at)(moments, flags)

    def pull_others(self, moments, flags, d_news, d_outputs):
        """Returns the gradients by params and shared, None for those not read."""
        if not self.has_others:
            return self.others
        both = (self.arrays.params, self.arrays.shared)

        def at(others, taps):
            params, shared = join(others, both)

            def one(*now):
                return self._smooth_linked(params, shared, *now)

            return jax.vmap(one)(moments, taps, flags)

        # The taps are varied too, see `products.linked`.
        _, pull = jax.vjp(at, self.others, zeros(moments.values))
        return pull((d_news, d_outputs))[0]


def _pull_weights(product, left, d_value):
    """Returns the gradients by the weights of a product, in its own structure."""

    def at(weights):
        full = join(weights, rest(product.weights))
        return product.apply(left, full)

    _, pull = jax.vjp(at, smooth(product.weights))
    (d_weights,) = pull(d_value)
    return products.with_weights(product, d_weights)


def _pull_projection(recurrence, params, inputs, d_z):
    """Returns the gradients by params, None for those not read, and by inputs."""
    read, _ = leaves_read(lambda *at: smooth(recurrence.project(*at)), params, inputs)
    varied = smooth(pick(params, read)), smooth(inputs)

    def at(varied, inputs_varied):
        full = join(varied, params), join(inputs_varied, rest(inputs))
        return smooth(recurrence.project(*full))

    _, pull = jax.vjp(at, *varied)
    return pull(d_z)

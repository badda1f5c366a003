"""The gradient of the steps of one chunk of time."""

from functools import partial
from typing import NamedTuple

import chex
import jax

from rnncells.recurrence import products
from rnncells.recurrence.parts import Arrays, Moment, Recurrence
from rnncells.recurrence.products import Product
from rnncells.recurrence.tape import Tape, recall
from rnncells.recurrence.traced import Traced
from rnncells.recurrence.trees import (
    add_given,
    is_smooth,
    join,
    pick,
    rest,
    smooth,
    structs,
    zeros,
)


class Stretch(NamedTuple):
    """The steps of a chunk, going back.

    Attributes:
      inputs: `(steps, ...)`.
      flags: `(steps, ...)`.
      moments: what is written of its steps, and perhaps of others.
      place: where in `moments` its first step is.
    """

    inputs: chex.ArrayTree
    flags: chex.ArrayTree
    moments: Moment
    place: jax.Array | int

    @property
    def steps(self) -> int:
        return jax.tree.leaves(self.inputs)[0].shape[0]


class StepGradient:
    """The derivative of a step, its products' values being known, over chunks of time.

    Making one traces the step, and tells what a forward pass has to keep.

    Attributes:
      recurrence: what runs.
      arrays: what it runs on.
      others: of `(params, shared)`, what a step reads beside the weights of products;
        None for the rest.
    """

    def __init__(self, recurrence: Recurrence, arrays: Arrays, flags: chex.ArrayTree):
        self.recurrence = recurrence
        self.arrays = arrays
        self._both = (arrays.others, arrays.shared)
        self._pulls = [products.loop_pull(product) for product in arrays.products]
        inputs, self._flags = structs((arrays.inputs, flags), drop_axis=True)
        carry = structs(arrays.carry)
        z = jax.eval_shape(partial(project, recurrence), arrays, inputs)
        values = jax.eval_shape(self._values, carry, z, self._flags)
        self._moment = Moment(carry, z, values)
        at = (self._moment, values, self._flags)
        traced = Traced(self._linked, self._both, *at)
        _, self._outputs = traced.result
        self._carried = traced.passed_on()
        reads, *_ = traced.read()
        self.others = smooth(pick(self._both, reads))
        self._has_others = bool(jax.tree.leaves(self.others))

    def tape(self, keeps: str) -> Tape:
        """Returns what the forward pass has to write, see `keeps` of `Plan`."""
        wanted = jax.tree.map(lambda leaf: False, self._moment)
        if keeps == "carries":
            all_carries = jax.tree.map(lambda leaf: True, wanted.carry)
            wanted = wanted._replace(carry=all_carries)
        elif keeps == "values":
            wanted = self._moment_read()
        return Tape(self._moment, self._outputs, wanted, self._carried)

    def values(
        self, carries: chex.ArrayTree, z: chex.ArrayTree, flags: chex.ArrayTree
    ) -> list[jax.Array]:
        """Returns the values of products at all steps of a chunk, formed at once."""
        return jax.vmap(self._values)(carries, z, flags)

    def pull_chunk(
        self, chunk: Stretch, d_carry: chex.ArrayTree, d_outputs: chex.ArrayTree
    ) -> tuple[chex.ArrayTree, Arrays, chex.ArrayTree]:
        """Takes the gradients after a chunk to those before it.

        Args:
          chunk: the chunk.
          d_carry: gradient by the carry after it.
          d_outputs: gradients by its outputs.

        Returns:
          The gradient by the carry before the chunk; the terms that it adds to the
          gradients that are sums over time, None for those it has no part in; and the
          gradients by its inputs.
        """
        moments = recall(self._moment, chunk.moments, chunk.place, chunk.steps)
        d_carry, d_z, d_values, d_news = self._loop_back(
            moments, chunk.flags, d_carry, d_outputs
        )
        d_products = [
            _pull_weights(*of_product)
            for of_product in zip(
                self.arrays.products,
                self._lefts(moments, chunk.flags),
                d_values,
                strict=True,
            )
        ]
        d_others, d_shared = self._pull_others(moments, chunk.flags, d_news, d_outputs)
        d_projected, d_projections, d_inputs = self._pull_projection(chunk.inputs, d_z)
        d_others = add_given(d_others, d_projected)
        terms = Arrays(d_others, d_projections, d_products, d_shared)
        return d_carry, terms, d_inputs

    def _values(self, carry, z, flags):
        take = products.formed_by(list(map(products.plain_form, self.arrays.products)))
        _, taken = self.recurrence.step(*self._both, carry, z, flags, take)
        return taken.values

    def _linked(self, both, moment, taps, flags):
        carry, z, values = moment
        take = products.linked(values, taps, self._pulls)
        result, _ = self.recurrence.step(*both, carry, z, flags, take)
        return result

    def _smooth_linked(self, *at):
        return smooth(self._linked(*at))

    def _moment_read(self) -> Moment:
        """Returns, for each leaf of a moment, whether the gradient depends on it."""

        def gradients(moment, flags, d_new, d_output):
            chunk = jax.tree.map(lambda leaf: leaf[None], (moment, flags))
            d_chunk = jax.tree.map(lambda leaf: leaf[None], (d_new, d_output))
            return (
                self._pull(self._linear(moment, flags), d_new, d_output),
                self._lefts(*chunk),
                self._pull_others(*chunk, *d_chunk),
            )

        at = (self._moment, self._flags)
        d_at = smooth((self._moment.carry, self._outputs))
        return Traced(gradients, *at, *d_at).read()[0]

    def _loop_back(self, moments, flags, d_carry, d_outputs):
        """Runs the steps of a chunk from the last to the first.

        Returns the gradient by the carry before the chunk, and, of every step, the
        gradients by `z`, by the values of products, and by the carry after it (None if
        nothing needs it).
        """
        # Filled while the loop is traced, which is once, before it is read.
        layout = {}
        varying, map_of = self._linear_chunk(moments, flags)

        def one(d_new, now):
            varying, d_output = now
            d_carry, d_z, d_values = self._pull(map_of(varying), d_new, d_output)
            # Where z only adds to a product, both have one gradient: kept once.
            leaves, layout["tree"] = jax.tree.flatten((d_z, d_values))
            unique = {id(leaf): leaf for leaf in leaves}
            layout["index"] = [list(unique).index(id(leaf)) for leaf in leaves]
            return d_carry, (list(unique.values()), d_new if self._has_others else None)

        d_carry, (unique, d_news) = jax.lax.scan(
            one,
            d_carry,
            (varying, d_outputs),
            reverse=True,
            unroll=self.recurrence.unroll,
        )
        leaves = [unique[k] for k in layout["index"]]
        d_z, d_values = jax.tree.unflatten(layout["tree"], leaves)
        return d_carry, d_z, d_values, d_news

    def _pull(self, pull, d_new, d_output):
        """Returns the gradients by the carry before a step, by z, and by values."""
        (d_carry, d_z), d_values = pull((d_new, d_output))
        return d_carry, d_z, d_values

    def _linear(self, moment, flags):
        """Returns the map of gradients after a step to those before it."""
        before = (moment.carry, moment.z)

        def at(varied, taps):
            full = Moment(*join(varied, rest(before)), moment.values)
            return self._smooth_linked(self._both, full, taps, flags)

        return jax.vjp(at, smooth(before), zeros(moment.values))[1]

    def _linear_chunk(self, moments, flags):
        """Returns `_linear` of all steps, formed at once.

        As its leaves that vary from step to step, `(steps, ...)`, and a function that
        makes the map of one step's.
        """
        # The same whenever `leaves` is traced: of one step, of zeros, of all steps.
        structure = None

        def leaves(*at):
            nonlocal structure
            leaves, structure = jax.tree.flatten(self._linear(*at))
            return leaves

        at = self._moment, self._flags
        varies = Traced(leaves, *at).depending()
        # These depend on no argument, so zeros give their values.
        constant = pick(leaves(*zeros(at)), [not v for v in varies])
        varying = jax.vmap(lambda *at: pick(leaves(*at), varies))(moments, flags)

        def map_of(varying):
            return jax.tree.unflatten(structure, join(varying, constant))

        return varying, map_of

    def _lefts(self, moments, flags):
        """Returns the left sides of the products, at all steps of a chunk."""

        def at(moment, flags):
            carry, z, values = moment
            take = products.known(values)
            _, taken = self.recurrence.step(*self._both, carry, z, flags, take)
            return taken.lefts

        return jax.vmap(at)(moments, flags)

    def _pull_others(self, moments, flags, d_news, d_outputs):
        """Returns the gradients by params and shared, None for those not read."""
        if not self._has_others:
            return self.others

        def at(others, taps):
            both = join(others, self._both)
            return jax.vmap(lambda *at: self._smooth_linked(both, *at))(
                moments, taps, flags
            )

        # The taps are varied too, see `products.linked`.
        _, pull = jax.vjp(at, self.others, zeros(moments.values))
        return pull((d_news, d_outputs))[0]

    def _pull_projection(self, inputs, d_z):
        """Returns the gradients by params, by products, and by inputs of a chunk.

        None for params that are used only as weights of products. `inputs` and
        `d_z` are `(steps, ...)`.
        """
        recurrence, arrays = self.recurrence, self.arrays
        forms = [products.pulled_form(product) for product in arrays.projections]

        def at(varied, taps):
            others, given = join(varied, (arrays.others, inputs))
            take = products.tapped(forms, taps)
            z, taken = recurrence.project(others, given, take)
            return smooth(z), taken.lefts

        values = jax.eval_shape(lambda: _project(recurrence, arrays, inputs)[1].values)
        read, _ = Traced(at, (arrays.others, inputs), values).read()
        varied = smooth((pick(arrays.others, read[0]), inputs))
        _, pull, lefts = jax.vjp(at, varied, zeros(values), has_aux=True)
        (d_others, d_inputs), d_values = pull(d_z)
        d_products = map(_pull_weights, arrays.projections, lefts, d_values)
        return d_others, list(d_products), d_inputs


def project(
    recurrence: Recurrence, arrays: Arrays, inputs: chex.ArrayTree
) -> chex.ArrayTree:
    """Returns the projected inputs, by the weights that are formed already."""
    return _project(recurrence, arrays, inputs)[0]


def _project(recurrence, arrays, inputs):
    take = products.formed_by(list(map(products.plain_form, arrays.projections)))
    return recurrence.project(arrays.others, inputs, take)


def _pull_weights(product: Product, left: jax.Array, d_value: jax.Array) -> Product:
    """Returns the gradients by the weights of a product, in its own structure."""
    if hasattr(product.apply, "pull_weights"):
        d_weights = product.apply.pull_weights(left, product.weights, d_value)
        d_weights = pick(d_weights, jax.tree.map(is_smooth, product.weights))
        return products.with_weights(product, d_weights)

    def at(weights):
        return product.apply(left, join(weights, rest(product.weights)))

    _, pull = jax.vjp(at, smooth(product.weights))
    return products.with_weights(product, pull(d_value)[0])

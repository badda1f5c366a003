"""A loop over time of an RNN that keeps the values of each step by name.

While JAX traces a step, a profile function (`sys.setprofile`) sees each method return
and marks the arrays among its local variables, by their names, in the jaxpr.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.flatten_util import ravel_pytree

from rnncells.cells.contract.any_cell import apply_step, is_cell
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry
from rnncells.loops.request import Obstacle, StepRequest
from rnncells.recurrence.jaxprs import bind, is_variable, live_equations, trace
from rnncells.recurrence.masks import expand_right
from rnncells.recurrence.pytrees import combine, inexact, partition, structs, upcast
from rnncells.recurrence.schedule import Call, LoopCarry, before_end, flip, move_axis

PREFIX = "rnncells.diagnostics:"
# Methods of these classes and of their bases are no methods of a cell.
_BASES = {*RNNCellBase.__mro__, *nn.RNNCellBase.__mro__}
# Names of marks that no variable in Python can have.
_BEFORE, _AFTER = "<", ">"


class StepValues(NamedTuple):
    """Arrays by name and leaves of the new carry: of a step, or taps on it.

    A tap is an array that is added to a value; None adds nothing.
    """

    values: dict[str, Any]
    carry: list[Any]


def marked(step: Callable = apply_step) -> Callable:
    """Returns `step(cell, carry, inputs)` with marks on its variables."""

    def marked_step(cell: nn.Module, carry: Carry, inputs: Any) -> tuple[Carry, Any]:
        carry, inputs = _mark_leaves((carry, inputs), _BEFORE)
        with _marked_variables():
            new, output = step(cell, carry, inputs)
        return _mark_leaves(new, _AFTER), output

    return marked_step


def _mark_leaves(tree: ArrayTree, name: str) -> ArrayTree:
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [_mark(leaf, f"{name}{k}") for k, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, leaves)


class NamedStep:
    """A step as a jaxpr with marks.

    `function(consts, inputs, carry)` is pure, and calls a step that `marked` returns,
    once; `consts` are the same at each step. `result` has the shapes and dtypes of its
    result.
    """

    def __init__(
        self, function: Callable, consts: ArrayTree, inputs: ArrayTree, carry: ArrayTree
    ):
        # A cached trace of a jitted function would run no Python code.
        with jax.disable_jit():
            traced, self.result = trace(function, consts, inputs, carry)
        equations = tuple(traced.jaxpr.eqns)
        marks = {
            e.params["name"].removeprefix(PREFIX): e
            for e in equations
            if e.primitive.name == "name" and e.params["name"].startswith(PREFIX)
        }
        passed = {e.outvars[0] for name, e in marks.items() if name.startswith(_BEFORE)}
        computed = {v for e in equations for v in e.outvars} - passed
        self._after = []
        for name, equation in marks.items():
            if name.startswith(_AFTER):
                leaf = equation.invars[0]
                # A leaf that the step did not compute is tapped after the step.
                is_new = is_variable(leaf) and leaf in computed
                self._after.append(leaf if is_new else equation.outvars[0])
        stages = replace(traced, equations=equations).stages
        self._named = {
            name: e.invars[0]
            for name, e in marks.items()
            if name[0] not in (_BEFORE, _AFTER)
            and is_variable(e.invars[0])
            and stages[e.invars[0]] > 0  # depends on more than `consts`
            and not jnp.issubdtype(e.invars[0].aval.dtype, jax.dtypes.extended)
        }
        results = [*traced.results, *self._named.values(), *self._after]
        live = live_equations(equations, results)
        self._equations = replace(traced, equations=live, results=results)

    def __call__(
        self,
        consts: ArrayTree,
        inputs: ArrayTree,
        carry: ArrayTree,
        taps: StepValues | None = None,
    ) -> tuple[ArrayTree, StepValues]:
        """Returns the result of the function, and the values of the step."""
        # Names of one variable share its place.
        added: dict[Any, list[Array]] = {}
        if taps is not None:
            places = [(self._named[name], tap) for name, tap in taps.values.items()]
            for variable, tap in [*places, *zip(self._after, taps.carry, strict=True)]:
                if tap is not None:
                    added.setdefault(variable, []).append(tap)

        def add_taps(equation: Any, operands: list[Array]) -> list[Array]:
            results = bind(equation, operands)
            return [
                sum(added.get(v, ()), r)
                for v, r in zip(equation.outvars, results, strict=True)
            ]

        leaves = iter(self._equations(consts, inputs, carry, rule=add_taps))
        result = jax.tree.map(lambda _: next(leaves), self.result)
        named = {name: next(leaves) for name in self._named}
        return result, StepValues(named, list(leaves))


@contextlib.contextmanager
def _marked_variables() -> Iterator[None]:
    """Marks the local variables of modules while JAX traces their methods.

    A mark is an equation of `checkpoint_name` in the jaxpr, whose result is not used.
    """
    arguments: dict[FrameType, dict[str, Any]] = {}
    codes: dict[type, set[CodeType]] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        module = _module(frame) if event in ("call", "return") else None
        if module is None:
            return
        if type(module) not in codes:
            codes[type(module)] = _codes(module)
        if frame.f_code not in codes[type(module)]:
            return
        if event == "call":
            arguments[frame] = dict(frame.f_locals)
            return
        unchanged = arguments.pop(frame, {})
        path = "/".join(map(str, module.scope.path))
        for name, value in frame.f_locals.items():
            is_array = isinstance(value, jax.core.Tracer) and not name.startswith("_")
            if is_array and unchanged.get(name) is not value:
                _mark(value, f"{path}/{name}".lstrip("/"))

    earlier = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        if earlier is None or callable(earlier):
            sys.setprofile(earlier)
        else:
            # Before Python 3.12, cProfile's profiler is here. It is not callable.
            sys.setprofile(None)
            earlier.enable()


def _mark(array: Any, name: str) -> Any:
    """Returns an array, marked by a name in the jaxpr."""
    return checkpoint_name(array, PREFIX + name)


def _module(frame: FrameType) -> Any:
    """Returns the bound module that is the first argument of a frame's function."""
    code = frame.f_code
    module = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    is_bound = isinstance(module, nn.Module) and module.scope is not None
    return module if is_bound else None


def _codes(module: nn.Module) -> set[CodeType]:
    """Returns the code of the methods whose variables count."""
    is_library = type(module).__module__.partition(".")[0] in ("flax", "rnncells")
    if is_library and not is_cell(module):
        return set()  # parts of a cell, such as `nn.Dense`
    codes = set()
    for cls in type(module).__mro__:
        methods = () if cls in _BASES else vars(cls).items()
        for name, method in methods:
            if name == "setup" or (name.startswith("_") and name != "__call__"):
                continue
            while hasattr(method, "__wrapped__"):
                method = method.__wrapped__
            if hasattr(method, "__code__"):
                codes.add(method.__code__)
    return codes


class Recorded(NamedTuple):
    """The values that a recurrent layer computed at every step, or their cotangents.

    All arrays have the axes `(*batch, time, ...)`, also with `time_major`, and are in
    the order of the inputs, also with `reverse`. At steps where `mask` is false, the
    cell ran on padding, or its result was not used: ignore the values there.

    Attributes:
      values: arrays by name, see `record`.
      carry: the carry after each step, in the form of the cell's carry.
      mask: true at valid steps, booleans `(*batch, time)`.
      jacobians: derivatives of the carry after a step by the carry before it,
        `(*batch, time, size, size)`, or None; see `record`.
    """

    values: dict[str, Array]
    carry: Carry
    mask: Array
    jacobians: Array | None = None


class Order(NamedTuple):
    """The order of steps in the arguments of a layer, and in its loop.

    `batch` has the sizes of the batch axes; `mask`, `(*batch, time)`, is true at valid
    steps, in the order of the arguments.
    """

    batch: tuple[int, ...]
    mask: Array
    reverse: bool
    seq_lengths: Array | None

    def from_steps(self, tree: ArrayTree) -> ArrayTree:
        """Returns `(time, *batch, ...)` of the loop as `(*batch, time, ...)`."""
        return self._flip(move_axis(tree, 0, len(self.batch)))

    def to_steps(self, tree: ArrayTree) -> ArrayTree:
        """Returns `(*batch, time, ...)` as `(time, *batch, ...)` of the loop."""
        return move_axis(self._flip(tree), len(self.batch), 0)

    def _flip(self, tree: ArrayTree) -> ArrayTree:
        if not self.reverse:
            return tree
        return flip(tree, self.seq_lengths, len(self.batch))


def order_of(call: Call) -> Order:
    """Returns the order of the steps in a call of an RNN."""
    steps = call.sizes[call.axis]
    valid = jnp.ones((*call.batch, steps), bool)
    if call.mask is not None:
        valid &= jnp.moveaxis(call.mask, call.axis, -1)
    if call.seq_lengths is not None:
        valid &= before_end(call.seq_lengths, valid.shape, len(call.batch))
    return Order(call.batch, valid, call.reverse, call.seq_lengths)


@dataclass
class RecordingLoop:
    """A loop over time, which diagnostics pass to an RNN in place of `table.run`.

    `taps` is `(values, carry)` in the form of `Recorded`, added to what the loop
    computes; None in place of a leaf, or of all, adds nothing. After the loop has run,
    `recorded` is what it has computed.
    """

    order: Order
    taps: Any
    jacobians: bool
    recorded: Recorded | None = None

    def run(self, request: StepRequest) -> tuple:
        """Runs the loop; returns what `Loop.run` returns."""
        request = replace(request, step=marked(request.step))
        carry = request.carry
        try:
            pure = request.function
        except Obstacle as error:
            raise ValueError(f"Recording an RNN {error}") from error
        named = NamedStep(
            lambda consts, xs, carry: pure.function(consts, carry, xs),
            *(pure.consts, structs(pure.xs, drop_axis=0), carry),
        )
        _, (_, changed) = named.result
        if names := changed.keys() & request.unbound_cell.variables.keys():
            raise ValueError(
                "Recording an RNN needs a cell that only reads its collections; "
                f"{request.cell_name} changes {sorted(names)} at each step. "
                "Leave them out of `mutable`."
            )
        taps = None
        if self.taps is not None:
            of_values, of_carry = self.order.to_steps(self.taps)
            leaves = jax.tree.leaves(of_carry, is_leaf=lambda leaf: leaf is None)
            taps = StepValues(of_values, leaves)
        one_step = partial(self._one_step, partial(named, pure.consts))
        final, (ys, values, matrices) = jax.lax.scan(one_step, carry, (pure.xs, taps))
        request.count_draws()
        recorded_carry = jax.tree.unflatten(jax.tree.structure(carry[0]), values.carry)
        self.recorded = self._recorded(values.values, recorded_carry, matrices)
        return final, ys

    def _one_step(self, named: Callable, carry: tuple, xs: tuple) -> tuple[Any, Any]:
        inputs, taps = xs
        (new, (output, _)), values = named(inputs, carry, taps)
        if not self.jacobians:
            return new, (output, values, None)
        state, final = carry

        def of_state(state: Carry) -> Carry:
            return named(inputs, LoopCarry(state, final))[0][0].state

        matrices = jacobian(of_state, state, len(self.order.batch))
        return new, (output, values, upcast(matrices))

    def _recorded(
        self, values: dict[str, Array], carry: Carry, matrices: Array | None
    ) -> Recorded:
        """Returns the values of all steps, `(time, *batch, ...)`, as a record."""
        order = self.order
        sizes = (order.mask.shape[-1], *order.batch)
        values = {k: v for k, v in values.items() if v.shape[: len(sizes)] == sizes}
        values, carry, matrices = order.from_steps((values, carry, matrices))
        if matrices is not None and order.seq_lengths is not None:
            # Where `padded_outputs` is 'run', the loop goes on in the padding.
            identity = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
            unpadded = before_end(order.seq_lengths, order.mask.shape, len(order.batch))
            unpadded = expand_right(unpadded, matrices.ndim)
            matrices = jnp.where(unpadded, matrices, identity)
        return Recorded(values, carry, order.mask, matrices)


def jacobian(function: Callable, carry: Carry, batch_dims: int) -> Array:
    """Returns the Jacobian of each row, without integers, `(*batch, size, size)`."""
    diff, nondiff = partition(carry)
    row = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape[batch_dims:], leaf.dtype), diff
    )
    vector, unravel = ravel_pytree(row)

    def moved(direction: Array) -> Array:
        """Returns the result for a carry moved in one direction in all rows."""
        parts = unravel(direction)
        carry = jax.tree.map(jnp.add, diff, parts)
        leaves = jax.tree.leaves(inexact(function(combine(carry, nondiff))))
        return jnp.concatenate([jax.lax.collapse(x, batch_dims) for x in leaves], -1)

    jacfwd = jax.jacfwd(moved, holomorphic=jnp.iscomplexobj(vector))
    return jacfwd(jnp.zeros_like(vector))

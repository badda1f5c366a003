"""A request to run a cell over time, in the form that all loops take."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
from chex import ArrayTree
from flax.core.scope import in_filter
from flax.errors import FlaxError, InvalidRngError

from rnncells import flax_internals
from rnncells.cells.contract.any_cell import apply_step
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry
from rnncells.flax_internals import DrawCounts, RngStreams, UnboundCell
from rnncells.gradients import Bptt
from rnncells.recurrence.engine.split_step import SplitStep
from rnncells.recurrence.jaxprs import has_side_effects, why_not_vmapped
from rnncells.recurrence.mesh import has_mesh_types
from rnncells.recurrence.pytrees import structs
from rnncells.recurrence.schedule import Body, StepInputs

# Measured on an H200 (docs/benchmarks-gpu.md): 2 are slower, 8 and 16 gain little.
_STEPS_ON_GPU = 4
# The options of a layer that loops differ in, and their defaults.
DEFAULTS = {
    "gradient": Bptt(),
    "implementation": "auto",
    "memory": "full",
    "projection": "auto",
}


class Obstacle(Exception):
    """A reason why a loop cannot run a step: a phrase such as "needs a cell that ...".

    Its kind is `draws` if the step draws random numbers.
    """

    def __init__(self, text: str, kind: Literal["draws", "step"] = "step") -> None:
        super().__init__(text)
        self.kind = kind


class PureFunction(NamedTuple):
    """The step of a layer's cell as a pure function, with its operands.

    The function is `(consts, carry, x) -> (carry, ((history, output), updates))`, where
    `updates` are the collections that the cell changes.
    """

    function: Callable
    consts: ArrayTree  # variables and keys; and the carry after a reset
    xs: ArrayTree  # of all steps, `(time, ...)`: `StepInputs`, and keys
    draw_counts: DrawCounts  # after the loop


class StepEffects(NamedTuple):
    """Effects of a step besides its results."""

    updates: set[str]  # the collections that it writes to or changes
    has_effects: bool  # such as `jax.debug.print`


@dataclass(frozen=True, eq=False)
class StepRequest:
    """A request to run a layer's cell over time."""

    rnn: nn.Module  # the layer, bound
    # Before the first step: the cell's, and the one that is returned if it is another.
    carry: tuple[Carry, Carry | None]
    xs: StepInputs  # of all steps, `(time, ...)`
    step: Callable = apply_step  # `(cell, carry, inputs) -> (carry, output)`
    body: Body = Body(keep_all=False)  # see `schedule.prepare`
    reset_carry: ArrayTree = None
    # Values of the options in `DEFAULTS`, in place of the layer's.
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> Any:
        return self.rnn.cell

    @property
    def cell_name(self) -> str:
        return type(self.rnn.cell).__name__

    @property
    def steps(self) -> Any:
        """Number of steps; symbolic in `jax.export`."""
        return jax.tree.leaves(self.xs)[0].shape[0]

    @property
    def unroll(self) -> int:
        """Number of steps in one iteration of a loop."""
        if not isinstance(self.steps, int):  # `jax.lax.scan` unrolls no symbolic length
            return 1
        if self.rnn.unroll is not None:
            return self.rnn.unroll
        return _STEPS_ON_GPU if jax.default_backend() == "gpu" else 1

    @property
    def is_empty(self) -> bool:
        """Whether there are no steps, or no numbers in the carry."""
        return self.steps == 0 or not any(
            leaf.size for leaf in jax.tree.leaves(self.carry)
        )

    def option(self, name: str) -> Any:
        return self.options[name] if name in self.options else getattr(self.rnn, name)

    @cached_property
    def unbound_cell(self) -> UnboundCell:
        """The cell apart from its model."""
        return flax_internals.unbound(self.cell)

    @cached_property
    def function(self) -> PureFunction:
        """The step as a pure function; raises Obstacle or FlaxError if it is none."""
        cell, names = self.unbound_cell, self.rnn.rng_streams
        _check_pure(self.rnn, names, cell.variables, self.carry[0], self.xs.inputs)
        streams = flax_internals.available_streams(self.cell, names, self.steps)
        counts, after = self._draw_counts(streams)
        if cell.has_outside_modules:
            counters = flax_internals.rng_counters(self.cell)
            before = flax_internals.draw_counts(counters)
            if sum(counts.values()) != sum(before.values()):
                # Their keys would depend on their place in the cell.
                raise Obstacle(
                    "needs modules that draw random numbers to belong to the cell; "
                    f"{self.cell_name} contains others. If nn.compact creates both, "
                    "create them in `setup`."
                )
        consts = (cell.variables, streams.fixed), self.reset_carry
        function = _step_function(self, streams, counts)
        return PureFunction(function, consts, (self.xs, streams.stepwise), after)

    def _draw_counts(self, streams: RngStreams) -> tuple[DrawCounts, DrawCounts]:
        """Returns numbers of random draws: before a step, and after the loop."""
        if not streams.like:
            return {}, {}
        cell, x_t = self.unbound_cell, structs(self.xs.inputs, drop_axis=0)
        count = partial(flax_internals.count_draws, cell.module, self.step)
        operands = cell.variables, self.carry[0], x_t, streams.like
        before = flax_internals.draw_counts(flax_internals.rng_counters(self.cell))
        counts = count(before, *operands)
        # Later draws continue with the counts that flax.linen.scan leaves.
        return counts, count(counts, *operands)

    def count_draws(self) -> None:
        """Counts the random draws of all steps of `function` in the layer."""
        if self.function.draw_counts:
            counters = flax_internals.rng_counters(self.cell)
            flax_internals.set_draw_counts(counters, self.function.draw_counts)

    @cached_property
    def effects(self) -> StepEffects:
        """Effects of the step besides its results; raises Obstacle."""
        with self._flax_errors_as_obstacles():
            consts, xs = self.function.consts, structs(self.function.xs, drop_axis=0)
            make_jaxpr = jax.make_jaxpr(self.function.function, return_shape=True)
            jaxpr, (_, (_, updates)) = make_jaxpr(consts, self.carry, xs)
            return StepEffects(set(updates), has_side_effects(jaxpr))

    def split(self, policy: Callable | None) -> SplitStep:
        """Returns the step, split by the engine; raises as `function`."""
        function, consts, xs, _ = self.function
        return SplitStep(function, consts, self.carry, structs(xs, drop_axis=0), policy)

    @cached_property
    def split_step(self) -> SplitStep:
        """The step as the engine runs it; raises Obstacle if the engine cannot."""
        with self._flax_errors_as_obstacles():
            policy = self.option("memory")
            step = self.split(policy if callable(policy) else None)
        _, (_, updates) = step.result
        if jax.tree.leaves(updates):
            raise self.writes_obstacle(updates)
        limit = why_not_vmapped(step.jaxpr, step.varying)
        if limit is not None:
            raise Obstacle(
                "needs a step that `jax.vmap` can map, because it takes the "
                f"derivatives of all steps at once; {self.cell_name} {limit}."
            )
        return step

    @contextmanager
    def _flax_errors_as_obstacles(self) -> Iterator[None]:
        try:
            yield
        except InvalidRngError as error:
            raise Obstacle(
                "needs each random stream of the cell in `rngs` and in `split_rngs`, "
                f"as in split_rngs={{'params': False, 'dropout': True}}: {error}",
                "draws",
            ) from error
        except FlaxError as error:
            raise Obstacle(
                f"needs a cell that uses only its own variables; {self.cell_name} uses "
                "others. If it contains a cell and nn.compact creates both, create "
                "them in `setup`."
            ) from error

    def writes_obstacle(self, collections: Iterable[str]) -> Obstacle:
        """Returns the obstacle of a cell that writes to collections."""
        return Obstacle(
            f"needs a cell that writes to no collection; {self.cell_name} writes to "
            f"{sorted(collections)}, for example with `sow`."
        )


def _check_pure(
    rnn: nn.Module, streams: Mapping, variables: Mapping, *operands: ArrayTree
) -> None:
    """Raises Obstacle if a step is not a pure function of arrays."""
    cell_name = type(rnn.cell).__name__
    same = rnn.variable_broadcast, rnn.variable_carry
    by_step = [
        name
        for name in sorted(variables)
        if any(in_filter(f, name) for f in rnn.variable_axes)
        and not any(in_filter(f, name) for f in same)
    ]
    if by_step:
        raise Obstacle(
            f"needs collections that are the same at each step; `variable_axes` of RNN "
            f"has {by_step} of {cell_name}."
        )
    if not all(isinstance(stream, str) for stream in streams):
        raise Obstacle(f"needs the names of random streams; got {[*streams]}.")
    if flax_internals.has_keys(dict(variables)):
        raise Obstacle(
            f"needs variables that are numbers; {cell_name} has random keys among them."
        )
    if has_mesh_types((variables, operands)):
        raise Obstacle(
            "does not support arrays with mesh types, as in explicit sharding or "
            "`shard_map` with `check_vma`."
        )


def changed(before: Mapping, after: Mapping) -> dict[str, Any]:
    """Returns the collections that have other arrays than before."""

    def arrays(tree: Any) -> list[int]:
        return list(map(id, jax.tree.leaves(tree)))

    return {
        name: tree
        for name, tree in after.items()
        if arrays(tree) != arrays(before.get(name, {}))
    }


def _step_function(
    request: StepRequest, streams: RngStreams, counts: DrawCounts
) -> Callable:
    """Returns a step as a function, see `PureFunction`."""
    cell, step, body = request.unbound_cell.module, request.step, request.body
    mutable = flax_internals.writable(request.cell)

    def call(cell: Any, carry: Carry, inputs: Any) -> tuple:
        if counts:
            flax_internals.set_draw_counts(flax_internals.rng_counters(cell), counts)
        return step(cell, carry, inputs)

    def pure(consts: tuple, carry: tuple, x: tuple) -> tuple:
        ((variables, fixed), reset_carry), (inputs, keys) = consts, x
        options: dict[str, Any] = {"rngs": streams.rngs(fixed, keys)}
        options |= {"mutable": mutable, "method": call}

        def apply(carry: Carry, inputs: ArrayTree) -> tuple:
            results = cell.apply(variables, carry, inputs, **options)
            (carry, output), updates = results
            return carry, (output, changed(variables, updates))

        carry, (history, (output, updates)) = body(apply, reset_carry, carry, inputs)
        return carry, ((history, output), updates)

    return pure


class Loop:
    """A loop over time: an entry of `rnncells.loops.table.LOOPS`."""

    name: str  # for errors
    # The kinds of values that the loop takes of each option (see `table._kinds`); of
    # an option that is not here, it takes the default alone.
    options: Mapping[str, tuple[str, ...]] = {}
    # Base classes of the cells for which the loop is; their `__call__` must not be
    # overridden. None: any cell.
    cells: tuple[type[RNNCellBase], ...] | None = None

    def is_for(self, cell: nn.Module) -> bool:
        """Says whether the loop is for a cell, by its class."""
        has_own_call = type(cell).__call__ is not RNNCellBase.__call__
        return self.cells is None or (isinstance(cell, self.cells) and not has_own_call)

    def check(self, request: StepRequest) -> None:
        """Raises Obstacle if the loop cannot run a request."""
        raise NotImplementedError

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        """Returns the last carry, and `(history, outputs)`, time first.

        They can be followed by a certificate.
        """
        raise NotImplementedError

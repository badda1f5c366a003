"""The loop of a layer whose gradient is carried forward in time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.gradients import is_forward
from rnncells.loops.fast import EngineOptions, run_fast
from rnncells.loops.independent_rows import check_independent_rows
from rnncells.loops.request import Loop, Obstacle, PureStep, StepRequest
from rnncells.loops.rows import Batch, batch_of, row_problem
from rnncells.recurrence.chunks import Segment, split_time
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import join
from rnncells.recurrence.pytrees import combine, structs

_DRAWING = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")


class ForwardLoop(Loop):
    """The values of the fast loop, and the gradient of the layer's forward method."""

    name = "loop of forward methods"
    options = {"gradient": is_forward}

    def why_not(self, request: StepRequest) -> Obstacle | None:
        return rows_obstacle(request)

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        pure = request.pure
        assert not isinstance(pure, Obstacle)
        request.count_draws()
        batch = batch_of(request)
        check_independent_rows(request.cell_name, batch, pure, request.carry)
        carry, (ys, _) = _run_forward(request, batch, pure)
        return carry, ys


def rows_obstacle(request: StepRequest) -> Obstacle | None:
    """Returns the reason why a step cannot be taken row by row, or None."""
    pure = request.pure
    if isinstance(pure, Obstacle):
        draws = pure.kind == "draws"
    else:
        draws = any(e.primitive.name in _DRAWING for e in pure.step.jaxpr.eqns)
    if draws:
        text = f"needs a step that draws no random numbers, got {request.cell_name}."
        return Obstacle("draws", text)
    if isinstance(pure, Obstacle):
        return pure
    traced = [c for c in pure.step.captured_arrays if isinstance(c, jax.core.Tracer)]
    if traced:
        return Obstacle(
            "step",
            "needs a step that reads only parameters, its carry and its inputs, got "
            f"{request.cell_name}, which closes over a traced array of shape "
            f"{traced[0].shape}, such as an argument of a function in `jax.jit` or "
            "`jax.grad`. Make the array a parameter or an input of the cell.",
        )
    return None


def random_keys(rnn: nn.Module, batch: Batch) -> tuple[Array, ...]:
    """Returns a raw random key for each row, if the layer's method draws numbers.

    Values need no key, so a missing one is an error of the gradient alone.
    """
    stream = rnn.gradient.rng_stream
    if stream is None or not rnn.has_rng(stream):
        return ()
    return (jax.random.bits(rnn.make_rng(stream), (batch.count, 2), jnp.uint32),)


def _run_forward(
    request: StepRequest, batch: Batch, pure: PureStep
) -> tuple[ArrayTree, ArrayTree]:
    """Returns the last carry and the outputs, `(time, *batch, ...)`."""
    step, operands, constants = row_problem(batch, pure, request.carry)
    shapes = structs((pure.consts[0], batch.to_rows(pure.consts[1])))
    steps, gradient = request.steps, request.option("gradient")
    block = gradient.block()
    options = EngineOptions("full", "auto", request.unroll)
    # JAX keeps `values`: arrays of this trace would leak.
    without_arrays = pure._replace(consts=None, xs=None)

    def values(
        operands: forward.DiffOperands, constants: forward.NondiffOperands
    ) -> tuple[ArrayTree, ArrayTree]:
        shared = join(operands.shared, shapes[0], constants.shared)
        reset_rows = join(operands.per_row, shapes[1], constants.per_row)
        consts = shared, batch.from_rows(reset_rows)
        carry = batch.from_rows(jax.vmap(step.carry)(operands.s, constants.carry))
        inputs, keys = combine(operands.x, constants.x)
        keys = jax.tree.map(lambda leaf: leaf[:, 0], keys)
        xs = batch.from_rows(inputs, 1), keys
        pure = without_arrays._replace(consts=consts, xs=xs)
        last, outputs = run_fast(options, pure, carry)
        return batch.to_rows(last), batch.to_rows(outputs, 1)

    last, outputs = forward.run(
        values,
        step,
        gradient.method,
        split_time(steps, block) if block > 1 else (Segment(0, steps, 1),),
        operands,
        constants,
        random_keys(request.rnn, batch),
    )
    return batch.from_rows(last), batch.from_rows(outputs, 1)

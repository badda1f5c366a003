"""The loop of a layer whose gradient is carried forward in time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.gradients import is_forward
from rnncells.loops.fast import EngineRun
from rnncells.loops.request import Loop, StepRequest
from rnncells.loops.rows import Batch, check_rows, row_problem
from rnncells.recurrence.chunks import Segment, split_time
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import join
from rnncells.recurrence.pytrees import combine, structs


class ForwardLoop(Loop):
    """The values of the fast loop, and the gradient of the layer's forward method."""

    name = "loop of forward methods"
    options = {"gradient": is_forward}

    def check(self, request: StepRequest) -> None:
        check_rows(request)

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        request.count_draws()
        (step, operands, constants), batch = row_problem(request)
        shared, reset_carry = request.function.consts
        shapes = structs((shared, batch.to_rows(reset_carry)))
        gradient, steps = request.option("gradient"), request.steps
        split_step, unroll = request.split_step, request.unroll
        block = gradient.block()

        # JAX keeps this function, so it must not close over arrays of this trace.
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
            engine_run = EngineRun(consts, carry, xs, "auto", unroll)
            plan = engine_run.plan(split_step, "full", split_step)
            last, outputs = engine_run(split_step, plan)
            return batch.to_rows(last), batch.to_rows(outputs, 1)

        segments = split_time(steps, block) if block > 1 else (Segment(0, steps, 1),)
        recurrence = forward.ForwardRecurrence(values, step, gradient.method, segments)
        keys = random_keys(request.rnn, batch)
        last, outputs = forward.run(recurrence, operands, constants, keys)
        ys, _ = batch.from_rows(outputs, 1)
        return batch.from_rows(last), ys


def random_keys(rnn: nn.Module, batch: Batch) -> tuple[Array, ...]:
    """Returns a raw random key for each row, if the layer's method draws numbers."""
    # Values need no key, so a missing one is an error of the gradient alone.
    stream = rnn.gradient.rng_stream
    if stream is None or not rnn.has_rng(stream):
        return ()
    return (jax.random.bits(rnn.make_rng(stream), (batch.count, 2), jnp.uint32),)

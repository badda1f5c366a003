"""The fast loop: the recurrence alone at each step, and a gradient of our own."""

from typing import NamedTuple

import jax
from chex import ArrayTree

from rnncells.gradients import is_plain_backward
from rnncells.loops.plain import PlainLoop
from rnncells.loops.request import Loop, Obstacle, PureStep, StepRequest, any_value
from rnncells.recurrence import engine, memory
from rnncells.recurrence.pytrees import inexact


class EngineOptions(NamedTuple):
    """Options of a request that the engine takes."""

    memory: memory.Memory
    projection: memory.Projection
    unroll: int


class FastLoop(Loop):
    """The loop of recurrence/engine.py."""

    name = "fast loop"
    options = {
        "gradient": is_plain_backward,
        "memory": any_value,
        "projection": any_value,
    }

    def why_not(self, request: StepRequest) -> Obstacle | None:
        return request.pure if isinstance(request.pure, Obstacle) else None

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        pure, carry = request.pure, request.carry
        assert not isinstance(pure, Obstacle)
        options = EngineOptions(
            request.option("memory"), request.option("projection"), request.unroll
        )
        # The step without the values that a policy chooses to save.
        has_policy = memory.checkpoint_policy_of(options.memory) is not None
        full = request.split(None) if has_policy else pure
        plan = _plan(options, pure, carry, full)
        is_auto = options.projection == "auto"
        saves_all = plan.saves == "all"
        if saves_all and not pure.step.products and is_auto:
            # There is nothing to project, to sum after the loop, or to recompute.
            return PlainLoop().run(request)
        if saves_all and options.memory != "full":
            # The program is that of memory='full', with its chunks of the projection.
            pure = full
            plan = _plan(options._replace(memory="full"), full, carry, full)
        request.count_draws()
        carry, (ys, _) = _run_engine(options, pure, carry, plan)
        return carry, ys


def run_fast(
    options: EngineOptions, pure: PureStep, carry: ArrayTree
) -> tuple[ArrayTree, ArrayTree]:
    """Runs the fast loop; returns the last carry and the outputs, time first."""
    return _run_engine(options, pure, carry, _plan(options, pure, carry, pure))


def _run_engine(
    options: EngineOptions, pure: PureStep, carry: ArrayTree, plan: memory.Plan
) -> tuple:
    recurrence = engine.Recurrence(pure.step, plan, options.unroll)
    weights = pure.step.weights(pure.consts)
    return engine.run(recurrence, engine.EngineOperands(weights, carry, pure.xs))


def _plan(
    options: EngineOptions, pure: PureStep, carry: ArrayTree, full: PureStep
) -> memory.Plan:
    """Returns the chunks of the fast loop and the residuals that it saves.

    `full` is the step without the values that a policy chooses to save.
    """
    weights = jax.eval_shape(pure.step.weights, pure.consts)
    z = engine.projected_structs(pure.step, weights, pure.xs)
    steps = jax.tree.leaves(pure.xs)[0].shape[0]
    operands = memory.OperandStructs(inexact(pure.consts), carry, pure.xs)
    if pure is not full:
        pairs = zip(weights.products, pure.step.chosen, strict=True)
        chosen = [product.result for product, is_chosen in pairs if is_chosen]
        weights = jax.eval_shape(full.step.weights, full.consts)
        full_operands = engine.EngineOperands(weights, carry, full.xs)
        saved = engine.saved_by_full(full.step, full_operands)
        operands = operands._replace(chosen=chosen, full=saved)
    return memory.plan(steps, z, options.memory, options.projection, operands)

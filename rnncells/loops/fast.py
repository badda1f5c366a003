"""The fast loop: the recurrence alone at each step, and a gradient of our own."""

from typing import NamedTuple

import jax
from chex import ArrayTree

from rnncells.gradients import is_plain_backward
from rnncells.loops.plain import PlainLoop
from rnncells.loops.request import Loop, StepRequest, any_value
from rnncells.recurrence import engine, memory
from rnncells.recurrence.pytrees import inexact
from rnncells.recurrence.split_step import SplitStep


class FastLoop(Loop):
    """The loop of recurrence/engine.py."""

    name = "fast loop"
    options = {
        "gradient": is_plain_backward,
        "memory": any_value,
        "projection": any_value,
    }

    def check(self, request: StepRequest) -> None:
        _ = request.split_step  # raises Obstacle

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        _, consts, xs, _ = request.function
        step, memory_option = request.split_step, request.option("memory")
        projection = request.option("projection")
        engine_run = EngineRun(consts, request.carry, xs, projection, request.unroll)
        # The step without the values that a policy chooses to save.
        has_policy = memory.checkpoint_policy_of(memory_option) is not None
        full = request.split(None) if has_policy else step
        plan = engine_run.plan(step, memory_option, full)
        if plan.saves == "all":
            if not step.products and projection == "auto":
                # There is nothing to project, to sum after the loop, or to recompute.
                return PlainLoop().run(request)
            if memory_option != "full":
                # The program is that of memory='full', with its chunks.
                step, plan = full, engine_run.plan(full, "full", full)
        request.count_draws()
        carry, (ys, _) = engine_run(step, plan)
        return carry, ys


class EngineRun(NamedTuple):
    """Operands and options of a run of the engine, apart from step and plan."""

    consts: ArrayTree
    carry: ArrayTree
    xs: ArrayTree
    projection: memory.Projection
    unroll: int

    def __call__(self, step: SplitStep, plan: memory.Plan) -> tuple:
        recurrence = engine.Recurrence(step, plan, self.unroll)
        operands = engine.EngineOperands(step.weights(self.consts), *self[1:3])
        return engine.run(recurrence, operands)

    def plan(
        self, step: SplitStep, memory_option: memory.Memory, full: SplitStep
    ) -> memory.Plan:
        """Returns the chunks of the fast loop and the residuals that it saves.

        `full` is the step without the values that a policy chooses to save.
        """
        weights = jax.eval_shape(step.weights, self.consts)
        z = engine.projected_structs(step, weights, self.xs)
        steps = jax.tree.leaves(self.xs)[0].shape[0]
        operands = memory.OperandStructs(inexact(self.consts), self.carry, self.xs)
        if step is not full:
            pairs = zip(weights.products, step.chosen, strict=True)
            chosen = [product.result for product, is_chosen in pairs if is_chosen]
            weights = jax.eval_shape(full.weights, self.consts)
            full_operands = engine.EngineOperands(weights, self.carry, self.xs)
            saved = engine.saved_by_full(full, full_operands)
            operands = operands._replace(chosen=chosen, full=saved)
        return memory.plan(steps, z, memory_option, self.projection, operands)

"""The fast loop: the recurrence alone at each step, and a gradient of our own."""

import jax
from chex import ArrayTree

from rnncells.loops.plain import PlainLoop
from rnncells.loops.request import Loop, StepRequest
from rnncells.recurrence.engine import memory
from rnncells.recurrence.engine import run as engine
from rnncells.recurrence.engine.run import EngineOperands
from rnncells.recurrence.engine.split_step import SplitStep
from rnncells.recurrence.pytrees import inexact


class FastLoop(Loop):
    """The loop of recurrence/engine/run.py."""

    name = "fast loop"
    options = {
        "gradient": ("exact", "backward"),
        "memory": ("full", "less"),
        "projection": ("auto", "chosen"),
    }

    def check(self, request: StepRequest) -> None:
        _ = request.split_step  # raises Obstacle

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        _, consts, xs, _ = request.function
        step, memory_option = request.split_step, request.option("memory")
        projection = request.option("projection")
        operands = EngineOperands(step.weights(consts), request.carry, xs)
        # The step without the values that a policy chooses to save.
        full = request.split(None) if callable(memory_option) else None
        plan = plan_of(step, consts, operands, memory_option, projection, full)
        if plan.saves == "all":
            if not step.products and projection == "auto":
                # There is nothing to project, to sum after the loop, or to recompute.
                return PlainLoop().run(request)
            if full is not None:
                step, operands = full, operands._replace(weights=full.weights(consts))
            if memory_option != "full":
                # The program is that of memory='full', with its chunks.
                plan = plan_of(step, consts, operands, "full", projection)
        request.count_draws()
        recurrence = engine.Recurrence(step, plan, request.unroll)
        carry, (ys, _) = engine.run(recurrence, operands)
        return carry, ys


def plan_of(
    step: SplitStep,
    consts: ArrayTree,
    operands: EngineOperands,
    memory_option: memory.Memory,
    projection: memory.Projection,
    full: SplitStep | None = None,
) -> memory.Plan:
    """Returns the chunks of the fast loop and the residuals that it saves.

    `full` is the step without the values that a policy chooses to save.
    """
    weights, carry, inputs = operands
    z = engine.projected_structs(step, weights, inputs)
    structs = memory.OperandStructs(inexact(consts), carry, inputs)
    if full is not None:
        pairs = zip(weights.products, step.chosen, strict=True)
        chosen = [product.result for product, is_chosen in pairs if is_chosen]
        full_weights = jax.eval_shape(full.weights, consts)
        saved = engine.saved_by_full(full, operands._replace(weights=full_weights))
        structs = structs._replace(chosen=chosen, full=saved)
    steps = jax.tree.leaves(inputs)[0].shape[0]
    return memory.plan(steps, z, memory_option, projection, structs)

"""From a traced function to its graph, with the graphs inside of its nodes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rnncells.diagnostics.graph.arguments import Argument
from rnncells.diagnostics.graph.backward_graph import BackwardGraph
from rnncells.diagnostics.graph.flows import Flow, Flows
from rnncells.diagnostics.graph.program import Program
from rnncells.diagnostics.graph.steps import Step, is_inlined, steps
from rnncells.recurrence.jaxprs import (
    Equations,
    as_function,
    is_variable,
    trace,
    variables,
)
from rnncells.recurrence.pytrees import is_inexact, structs


def graph_of(
    equations: Equations,
    name: str,
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    whole: tuple[Any, Any, Any] | None = None,
) -> BackwardGraph:
    """Returns the graph of a traced function.

    Args:
      equations: the function.
      name: its name.
      arguments: its argument leaves.
      outputs: names of the leaves of its result.
      whole: what `Program` needs to run it, beside its steps.
    """
    flows, found = Flows(_inner), steps(equations)
    inputs = [v for leaves in equations.arguments for v in leaves]
    for variable, argument in zip(inputs, arguments, strict=True):
        flows.argument(variable, *argument)
    for step in found:
        flows.take(step)
    results = tuple(
        flows.of(atom).edge(atom, output)
        for atom, output in zip(equations.results, outputs, strict=True)
    )
    program = None
    if whole is not None:
        program = Program(equations, found, flows.recorded, *whole)
    graph = BackwardGraph(name, results, {}, program)
    wanted = [argument.name for argument in arguments if argument.requires]
    return dataclasses.replace(graph, unreached=_unreached(graph, wanted))


def _unreached(graph: BackwardGraph, wanted: Sequence[str]) -> dict[str, str]:
    """Returns which arguments get no gradient, and why."""
    reached = {leaf.argument for leaf in graph.leaves}
    reasons = {name: cut.reason for cut in graph.cuts for name in cut.arguments}
    return {
        name: reasons.get(name, "no result depends on it")
        for name in wanted
        if name not in reached
    }


def _inner(step: Step, flows: Sequence[Flow]) -> tuple[BackwardGraph, ...]:
    """Returns the graphs of the functions that a step calls."""
    equation = step.equation
    primitive, params = equation.primitive.name, equation.params
    if primitive == "scan":
        return (_of_scan(step, flows),)
    if primitive == "cond":
        called = [
            (f"branch {k}", branch) for k, branch in enumerate(params["branches"])
        ]
        flows = flows[1:]
    elif primitive in ("remat2", "checkpoint", "jit"):
        called = [(step.name, params["jaxpr"])]
        # A step has no operands for numbers.
        by_variable = dict(zip(step.operands, flows, strict=True))
        flows = [
            by_variable.get(v, Flow()) if is_variable(v) else Flow(name="constant")
            for v in equation.invars
        ]
    else:
        return ()
    arguments = [
        Argument(flow.name or f"operand[{k}]", flow.node is not None, flow.device)
        for k, flow in enumerate(flows)
    ]
    return tuple(_of_jaxpr(name, jaxpr, arguments) for name, jaxpr in called)


def _of_jaxpr(name: str, jaxpr: Any, arguments: Sequence[Argument]) -> BackwardGraph:
    equations = _inner_equations(jaxpr)
    outputs = [f"result[{k}]" for k, _ in enumerate(equations.results)]
    return graph_of(equations, name, arguments, outputs)


def _inner_equations(jaxpr: Any) -> Equations:
    operands = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).invars]
    function = as_function(jaxpr, is_inlined)
    return trace(function, *structs(operands), is_inlined=is_inlined)[0]


def _of_scan(step: Step, flows: Sequence[Flow]) -> BackwardGraph:
    """Returns the graph of one step of a loop.

    The shapes tell constants and carries from the inputs of all steps, which have one
    axis more outside. A carry requires a gradient if a step makes it depend on one.
    """
    equations = _inner_equations(step.equation.params["jaxpr"])
    inside = [leaves[0] for leaves in equations.arguments]
    outside = zip(inside, step.operands, strict=True)
    inputs = sum(v.aval.shape != atom.aval.shape for v, atom in outside)
    ends = zip(equations.results, step.results, strict=True)
    carries = sum(v.aval.shape == atom.aval.shape for v, atom in ends)
    constants = len(inside) - inputs - carries
    labels = [flow.name or f"constant[{k}]" for k, flow in enumerate(flows[:constants])]
    labels += [f"carry[{k}]" for k in range(carries)]
    labels += [f"input[{k}]" for k in range(inputs)]
    requires = [flow.node is not None for flow in flows]
    requires = _with_carries(equations, requires, slice(constants, -inputs or None))
    devices = [flow.device for flow in flows]
    arguments = list(map(Argument, labels, requires, devices))
    outputs = [f"carry[{k}]" for k in range(carries)]
    outputs += [f"output[{k}]" for k in range(len(equations.results) - carries)]
    return graph_of(equations, "step", arguments, outputs)


def _with_carries(
    equations: Equations, requires: list[bool], carries: slice
) -> list[bool]:
    """Returns which operands of a step require a gradient, in any of the steps."""
    before = requires[carries]
    made = _requiring(equations, requires)[: len(before)]
    after = [a or b for a, b in zip(before, made, strict=True)]
    if after == before:
        return requires
    requires = list(requires)
    requires[carries] = after
    return _with_carries(equations, requires, carries)


def _requiring(equations: Equations, requires: Sequence[bool]) -> list[bool]:
    """Returns which results require a gradient, given which arguments do."""
    leaves = [v for leaves in equations.arguments for v in leaves]
    found = {v for v, required in zip(leaves, requires, strict=True) if required}
    for equation in equations.equations:
        is_cut = equation.primitive.name == "stop_gradient"
        if not is_cut and found.intersection(variables(equation)):
            found.update(v for v in equation.outvars if is_inexact(v.aval))
    return [is_variable(v) and v in found for v in equations.results]

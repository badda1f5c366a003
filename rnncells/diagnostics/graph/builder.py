"""From a traced function to its graph, with the graphs inside of its nodes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from rnncells.diagnostics.graph.backward_graph import BackwardGraph
from rnncells.diagnostics.graph.nodes import (
    Accumulate,
    ArrayType,
    Cut,
    Edge,
    Node,
    Operation,
)
from rnncells.diagnostics.graph.operations import operand_letters, wording
from rnncells.diagnostics.graph.saved import derivative
from rnncells.diagnostics.graph.steps import Step, is_inlined, steps
from rnncells.diagnostics.graph.tape import Program
from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Variable,
    as_function,
    is_variable,
    trace,
    variables,
)
from rnncells.recurrence.pytrees import is_inexact, structs


class Argument(NamedTuple):
    """A leaf of the arguments: its name, whether it requires a gradient, its device."""

    name: str
    requires: bool
    device: str | None = None


def graph_of(
    equations: Equations,
    name: str,
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    trees: tuple[Any, Any, Any] | None = None,
) -> BackwardGraph:
    """Returns the graph of a traced function.

    Args:
      equations: the function.
      name: its name.
      arguments: its argument leaves.
      outputs: names of the leaves of its result.
      trees: what a `Program` needs beside its steps; None for a graph that is not run.
    """
    builder, steps_ = _Builder(), steps(equations)
    inputs = [v for leaves in equations.arguments for v in leaves]
    for variable, argument in zip(inputs, arguments, strict=True):
        builder.add_argument(variable, argument)
    for step in steps_:
        builder.add_step(step)
    results = tuple(
        builder.flow(atom).edge(atom, output)
        for atom, output in zip(equations.results, outputs, strict=True)
    )
    program = trees and Program(equations, steps_, builder.recorded, *trees)
    required = tuple(argument.name for argument in arguments if argument.requires)
    return BackwardGraph(name, results, required, program)


class _Flow(NamedTuple):
    """The way of the gradient of a value.

    Attributes:
      node: the next node, which may be a cut; None if the value needs no gradient.
      output: number of the node's output that the value is.
      arguments: names of the arguments that the gradient reaches.
      device: of the value.
      name: of an argument or a constant.
    """

    node: Node | None = None
    output: int = 0
    arguments: frozenset[str] = frozenset()
    device: str | None = None
    name: str | None = None

    @property
    def requires(self) -> bool:
        return self.node is not None and not isinstance(self.node, Cut)

    def edge(self, variable: Atom, operand: str) -> Edge:
        """Returns the edge of an operand or a result of the graph."""
        return Edge(self.node, self.output, ArrayType.of(variable.aval), operand)


_CONSTANT = _Flow(name="constant")


class _Builder:
    """Adds nodes for the steps of a function, in their order.

    Attributes:
      recorded: see `Program`.
    """

    def __init__(self) -> None:
        self.recorded: dict[Step, tuple[Operation, dict[int, Edge]]] = {}
        self._flows: dict[Variable, _Flow] = {}

    def flow(self, atom: Atom) -> _Flow:
        """Returns the flow of a variable or a literal."""
        return self._flows.get(atom, _CONSTANT) if is_variable(atom) else _CONSTANT

    def add_argument(self, variable: Variable, argument: Argument) -> None:
        """Adds an argument, with a leaf node if it requires a gradient."""
        name, requires, device = argument
        flow = _Flow(device=device, name=name)
        if requires:
            outputs = (ArrayType.of(variable.aval),)
            leaf = Accumulate(outputs=outputs, device=device, argument=name)
            flow = flow._replace(node=leaf, arguments=frozenset([name]))
        self._flows[variable] = flow

    def add_step(self, step: Step) -> None:
        """Adds the results of a step, and its node if it has one."""
        flows = [self.flow(v) for v in step.invars]
        device = ", ".join(sorted({f.device for f in flows if f.device})) or None
        if not any(flow.requires for flow in flows):
            flow = _Flow(_merged({f.node for f in flows if isinstance(f.node, Cut)}))
        elif step.equation.primitive.name == "stop_gradient":
            flow = _Flow(_cut("stop_gradient", flows, step, device))
        else:
            flow = self._record(step, flows, device)
        for number, variable in enumerate(step.outvars):
            # Integers have no gradient.
            of_result = flow if is_inexact(variable.aval) else _Flow()
            if of_result.requires:
                of_result = of_result._replace(output=number)
            self._flows[variable] = of_result._replace(device=device)

    def _record(self, step: Step, flows: list[_Flow], device: str | None) -> _Flow:
        """Adds the node of a step, unless its derivative is 0; returns its flow."""
        letters = operand_letters(step.name, len(flows))
        wanted = [k for k, flow in enumerate(flows) if flow.requires]
        passes, saved = derivative(step, wanted, letters, [flow.name for flow in flows])
        passing = [k for k, is_passed in zip(wanted, passes, strict=True) if is_passed]
        zero = f"{step.name} has the derivative 0"
        if not passing:
            return _Flow(_cut(zero, flows, step, device))
        ends = flows.copy()
        for k in set(wanted) - set(passing):
            ends[k] = _Flow(_cut(zero, [flows[k]], step, device))
        edges = {
            k: ends[k].edge(atom, letters[k])
            for k, atom in enumerate(step.invars)
            if is_inexact(atom.aval)
        }
        forward, backward, words = wording(step.name, step.exponent, letters)
        node = Operation(
            name=step.name,
            order=len(self.recorded),
            outputs=_types(step),
            device=device,
            forward=forward,
            backward=backward,
            words=words,
            edges=tuple(edges.values()),
            saved=tuple(saved),
            inner=_inner_graphs(step, flows),
        )
        self.recorded[step] = node, {k: edges[k] for k in passing}
        return _Flow(node, arguments=_reached([flows[k] for k in passing]))


def _reached(flows: Sequence[_Flow]) -> frozenset[str]:
    return frozenset().union(*(flow.arguments for flow in flows))


def _types(step: Step) -> tuple[ArrayType, ...]:
    return tuple(ArrayType.of(v.aval) for v in step.outvars)


def _cut(reason: str, flows: Sequence[_Flow], step: Step, device: str | None) -> Cut:
    arguments = tuple(sorted(_reached(flows)))
    return Cut(outputs=_types(step), device=device, reason=reason, arguments=arguments)


def _merged(cuts: set[Cut]) -> Cut | None:
    """Returns one cut for a value that several cuts lead to."""
    if len(cuts) < 2:
        return next(iter(cuts), None)
    reasons = sorted({cut.reason for cut in cuts})
    arguments = sorted({name for cut in cuts for name in cut.arguments})
    return dataclasses.replace(
        next(iter(cuts)), reason="; ".join(reasons), arguments=tuple(arguments)
    )


def _inner_graphs(step: Step, flows: Sequence[_Flow]) -> tuple[BackwardGraph, ...]:
    """Returns the graphs of the functions that a step calls."""
    equation = step.equation
    primitive, params = equation.primitive.name, equation.params
    if primitive == "scan":
        return (_scan_graph(step, flows),)
    if primitive == "cond":
        named = [(f"branch {k}", b) for k, b in enumerate(params["branches"])]
        flows = flows[1:]
    elif primitive in ("remat2", "checkpoint", "jit"):
        named = [(step.name, params["jaxpr"])]
        # A step has no operands for numbers.
        by_variable = dict(zip(step.invars, flows, strict=True))
        flows = [
            by_variable.get(v, _Flow()) if is_variable(v) else _CONSTANT
            for v in equation.invars
        ]
    else:
        return ()
    arguments = [
        Argument(flow.name or f"operand[{k}]", flow.requires, flow.device)
        for k, flow in enumerate(flows)
    ]
    graphs = []
    for name, jaxpr in named:
        equations = _inner_equations(jaxpr)
        outputs = [f"result[{k}]" for k, _ in enumerate(equations.results)]
        graphs.append(graph_of(equations, name, arguments, outputs))
    return tuple(graphs)


def _inner_equations(jaxpr: Any) -> Equations:
    operands = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).invars]
    function = as_function(jaxpr, is_inlined)
    return trace(function, *structs(operands), is_inlined=is_inlined)[0]


def _scan_graph(step: Step, flows: Sequence[_Flow]) -> BackwardGraph:
    """Returns the graph of one step of a loop.

    The shapes tell constants and carries from the inputs of all steps, which have one
    axis more outside. A carry requires a gradient if a step makes it depend on one.
    """
    equations = _inner_equations(step.equation.params["jaxpr"])
    inside = [leaves[0] for leaves in equations.arguments]
    outside = zip(inside, step.invars, strict=True)
    inputs = sum(v.aval.shape != atom.aval.shape for v, atom in outside)
    ends = zip(equations.results, step.outvars, strict=True)
    carries = [
        f"carry[{k}]"
        for k in range(sum(v.aval.shape == atom.aval.shape for v, atom in ends))
    ]
    end = len(inside) - inputs
    start = end - len(carries)
    names = [flow.name or f"constant[{k}]" for k, flow in enumerate(flows[:start])]
    names += [*carries, *(f"input[{k}]" for k in range(inputs))]
    requires = [flow.requires for flow in flows]
    while True:
        after = _requiring(equations, requires)[: len(carries)]
        after = [a or b for a, b in zip(requires[start:end], after, strict=True)]
        if after == requires[start:end]:
            break
        requires[start:end] = after
    arguments = list(map(Argument, names, requires, [flow.device for flow in flows]))
    per_step = len(equations.results) - len(carries)
    outputs = [*carries, *(f"output[{k}]" for k in range(per_step))]
    return graph_of(equations, "step", arguments, outputs)


def _requiring(equations: Equations, requires: Sequence[bool]) -> list[bool]:
    """Returns which results require a gradient, given which arguments do."""
    leaves = [v for leaves in equations.arguments for v in leaves]
    tainted = {v for v, required in zip(leaves, requires, strict=True) if required}
    for equation in equations.equations:
        is_cut = equation.primitive.name == "stop_gradient"
        if not is_cut and tainted.intersection(variables(equation)):
            tainted.update(v for v in equation.outvars if is_inexact(v.aval))
    return [is_variable(v) and v in tainted for v in equations.results]

"""Where the gradient of each value of a function goes: the nodes, step by step."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from rnncells.diagnostics.graph.nodes import (
    LEAF_ORDER,
    Accumulate,
    ArrayType,
    Cut,
    Edge,
    Node,
    Operation,
    Saved,
)
from rnncells.diagnostics.graph.program import Recorded
from rnncells.diagnostics.graph.saved import Derivative, Residual, derivative
from rnncells.diagnostics.graph.steps import Step
from rnncells.diagnostics.graph.wording import operand_letters, wording
from rnncells.recurrence.jaxprs import Atom, Variable, is_variable
from rnncells.recurrence.pytrees import is_inexact


class Flow(NamedTuple):
    """Where the gradient of a value goes.

    Attributes:
      node: the next node; None if the value needs no gradient.
      output: number of the node's output that the value is.
      cut: where the gradient was cut, if it was.
      arguments: names of the arguments that the gradient reaches.
      device: of the value.
      name: of an argument or a constant.
    """

    node: Node | None = None
    output: int = 0
    cut: Cut | None = None
    arguments: frozenset[str] = frozenset()
    device: str | None = None
    name: str | None = None

    def edge(self, variable: Any, operand: str) -> Edge:
        """Returns the edge of an operand or a result of the graph."""
        kind = ArrayType.of(variable.aval)
        return Edge(self.node or self.cut, self.output, kind, operand)


class Flows:
    """The flows of a function's values; taking a step may add a node.

    Attributes:
      recorded: for each step that has a node, the node and its operands.
    """

    def __init__(self, inner: Callable[[Step, list[Flow]], tuple]):
        """Starts without values.

        Args:
          inner: returns the graphs of the functions that a step calls.
        """
        self.recorded: dict[Step, Recorded] = {}
        self._inner = inner
        self._flows: dict[Variable, Flow] = {}

    def argument(
        self, variable: Variable, name: str, requires: bool, device: str | None
    ) -> None:
        """Adds an argument, with a leaf node if it requires a gradient."""
        flow = Flow(device=device, name=name)
        if requires:
            kind = ArrayType.of(variable.aval)
            leaf = Accumulate("Accumulate", LEAF_ORDER, (kind,), device, name)
            flow = flow._replace(node=leaf, arguments=frozenset([name]))
        self._flows[variable] = flow

    def of(self, atom: Atom) -> Flow:
        """Returns the flow of a variable or a literal."""
        constant = Flow(name="constant")
        return self._flows.get(atom, constant) if is_variable(atom) else constant

    def take(self, step: Step) -> None:
        """Adds the results of a step, and its node if it has one."""
        flows = [self.of(v) for v in step.operands]
        wanted = [k for k, flow in enumerate(flows) if flow.node is not None]
        reached = _reached(flows, wanted)
        device = _joined(flow.device for flow in flows)
        if step.equation.primitive.name == "stop_gradient" and wanted:
            cut = _cut("stop_gradient", reached, step, device)
            return self._add(step, Flow(cut=cut, device=device))
        if not wanted:
            cuts = {flow.cut for flow in flows if flow.cut is not None}
            return self._add(step, Flow(cut=_merged(cuts), device=device))
        found = self._derivative(step, wanted)
        if not any(found.passes):
            cut = _cut(_zero(step), reached, step, device)
            return self._add(step, Flow(cut=cut, device=device))
        self._record(step, flows, wanted, found, device)

    def _derivative(self, step: Step, wanted: list[int]) -> Derivative:
        if step.equation.primitive.name == "while":
            return Derivative([True] * len(wanted), [])
        operands = [
            jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
            if is_variable(v)
            else v.val
            for v in step.operands
        ]
        letters = operand_letters(step.name, len(operands))
        return derivative(step.function, operands, wanted, letters)

    def _record(self, step, flows, wanted, found, device):
        """Adds the node of a step."""
        letters = operand_letters(step.name, len(flows))
        passing = [k for k, passes in zip(wanted, found.passes, strict=True) if passes]
        ending = {
            k: Flow(cut=_cut(_zero(step), flows[k].arguments, step, device))
            for k in set(wanted) - set(passing)
        }
        edges = {
            k: ending.get(k, flows[k]).edge(atom, letters[k])
            for k, atom in enumerate(step.operands)
            if is_inexact(atom.aval)
        }
        node = Operation(
            step.name,
            len(self.recorded),
            tuple(ArrayType.of(v.aval) for v in step.results),
            device,
            *wording(step.name, step.exponent, letters),
            tuple(edges.values()),
            tuple(_saved(step, flows, residual) for residual in found.residuals),
            self._inner(step, flows),
        )
        sent = tuple(edges[k] for k in passing)
        self.recorded[step] = Recorded(node, tuple(passing), sent)
        reached = _reached(flows, passing)
        self._add(step, Flow(node, arguments=reached, device=device))

    def _add(self, step: Step, flow: Flow) -> None:
        """Adds the results of a step; those that are integers have no gradient."""
        for number, variable in enumerate(step.results):
            of_result = flow._replace(output=number if flow.node is not None else 0)
            if not is_inexact(variable.aval):
                of_result = Flow(device=flow.device)
            self._flows[variable] = of_result


def _reached(flows: Sequence[Flow], numbers: Sequence[int]) -> frozenset[str]:
    return frozenset().union(*(flows[k].arguments for k in numbers))


def _joined(devices: Iterable[str | None]) -> str | None:
    found = sorted({device for device in devices if device is not None})
    return ", ".join(found) if found else None


def _zero(step: Step) -> str:
    return f"{step.name} has the derivative 0"


def _cut(reason: str, arguments: Iterable[str], step: Step, device: str | None) -> Cut:
    kinds = tuple(ArrayType.of(v.aval) for v in step.results)
    return Cut("Cut", LEAF_ORDER, kinds, device, reason, tuple(sorted(arguments)))


def _merged(cuts: set[Cut]) -> Cut | None:
    """Returns one cut for a value that several cuts lead to."""
    if len(cuts) < 2:
        return next(iter(cuts), None)
    reasons = sorted({cut.reason for cut in cuts})
    arguments = sorted({name for cut in cuts for name in cut.arguments})
    (first, *_) = cuts
    return dataclasses.replace(
        first, reason="; ".join(reasons), arguments=tuple(arguments)
    )


def _saved(step: Step, flows: Sequence[Flow], residual: Residual) -> Saved:
    name, of = None, object()
    if residual.source == "operand":
        name, of = flows[residual.number].name, step.operands[residual.number]
    elif residual.source == "result":
        of = step.results[residual.number]
    elif residual.number >= 0 and len(step.equation.invars) == len(step.operands):
        of = step.equation.invars[residual.number]
    kind = ArrayType.of(residual.struct)
    return Saved(residual.formula, residual.source, kind, of, name)

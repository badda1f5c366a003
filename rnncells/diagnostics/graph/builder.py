"""From a function and its arguments to its backward graph."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.api_util import debug_info

from rnncells.diagnostics.graph.backward_graph import BackwardGraph
from rnncells.diagnostics.graph.nodes import Accumulate, Cut, Edge, Node, Operation
from rnncells.diagnostics.graph.operations import operand_letters, wording
from rnncells.diagnostics.graph.steps import Step, derivative, is_inlined, steps
from rnncells.diagnostics.graph.tape import Program
from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Variable,
    as_function,
    is_variable,
    trace,
)
from rnncells.recurrence.pytrees import is_inexact, structs


def backward_graph(
    fn: Callable, *args: Any, argnums: int | Sequence[int] | None = None
) -> BackwardGraph:
    """Returns the graph of operations that reverse-mode differentiation records.

    The graph has the form of PyTorch's `grad_fn` and `next_functions`: it starts at the
    results, and leads to the arguments. Each operation says what its backward pass
    computes, what it keeps for it, and where its gradients go. The function is only
    traced, so shapes are enough.

    >>> import jax.numpy as jnp
    >>> from rnncells.diagnostics import backward_graph
    >>> def q(a, b):
    ...     return 3 * a**3 - b**2
    >>> a, b = jnp.array([2.0, 3.0]), jnp.array([6.0, 4.0])
    >>> graph = backward_graph(q, a, b)
    >>> sub = graph.results[0].node
    >>> sub.name, [(node.name, number) for node, number in sub.next_functions]
    ('Sub', [('Mul', 0), ('Pow', 0)])
    >>> [node.label for node in graph.nodes]
    ['Sub 3', 'Pow 2', 'Mul 1', 'Pow 0', 'Accumulate a', 'Accumulate b']
    >>> tape = graph.record(a, b)
    >>> gradients = tape.backward(jnp.ones(2))
    >>> gradients["a"], gradients["b"]
    (Array([36., 81.], dtype=float32), Array([-12.,  -8.], dtype=float32))

    Args:
      fn: a pure function of pytrees of arrays; also a bound `flax.linen` module or one
        of its methods, whose `params` require gradients as well.
      *args: its arguments: arrays, or `jax.ShapeDtypeStruct`s.
      argnums: numbers of the arguments that require gradients. Default: None: all
        leaves with floating or complex dtypes.

    Raises:
      TypeError: an argument of `argnums` has leaves that are not floating or complex.
      ValueError: `argnums` is out of range or has a number twice.
    """
    bound: tuple[Any, ...] = ()
    requires = _which_require(argnums, args)
    names: Any = debug_info("backward_graph", fn, args, {}).arg_names
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    if isinstance(module, nn.Module) and module.scope is not None:
        fn, params = _as_function_of_params(fn, module)
        bound = (params,)
        requires = _which_require(None, bound) + requires
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        names = (*("params" + jax.tree_util.keystr(path) for path in paths), *names)
    trees = (*bound, *args)
    devices = map(_device, jax.tree.leaves(trees))
    arguments = list(map(_Argument, names, requires, devices))
    equations, result = trace(fn, *structs(trees), is_inlined=is_inlined)
    ends = jax.tree_util.tree_leaves_with_path(result)
    return _graph_of(
        equations,
        getattr(fn, "__name__", type(fn).__name__),
        arguments,
        ["result" + jax.tree_util.keystr(path) for path, _ in ends],
        (bound, structs(args), result),
    )


class _Argument(NamedTuple):
    """A leaf of the arguments: its name, whether it requires a gradient, its device."""

    name: str
    requires: bool
    device: str | None = None


def _graph_of(
    equations: Equations,
    name: str,
    arguments: Sequence[_Argument],
    outputs: Sequence[str],
    trees: tuple[Any, Any, Any] | None = None,
) -> BackwardGraph:
    """Returns the graph of a traced function.

    `outputs` names the leaves of its result. `trees` are the last fields of a
    `Program`; None for a graph that is not run.
    """
    builder = _Builder()
    inputs = [v for leaves in equations.arguments for v in leaves]
    for variable, argument in zip(inputs, arguments, strict=True):
        builder.add_argument(variable, argument)
    for step in steps(equations):
        builder.add_step(step)
    results = tuple(
        builder.flow(atom).edge(atom, output)
        for atom, output in zip(equations.results, outputs, strict=True)
    )
    names = tuple(argument.name for argument in arguments)
    program = trees and Program(equations, names, *trees)
    required = tuple(argument.name for argument in arguments if argument.requires)
    return BackwardGraph(name, results, required, program)


class _Flow(NamedTuple):
    """The way of the gradient of a value.

    `node` is the next one, which may be a cut, and `output` the number of its output
    that the value is; `arguments` are those that the gradient reaches. An argument or a
    constant has a `name`.
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
        return Edge(self.node, self.output, structs(variable.aval), operand)


_CONSTANT = _Flow(name="constant")


class _Builder:
    """Adds nodes for the steps of a function, in their order."""

    def __init__(self) -> None:
        self._operations = 0
        self._flows: dict[Variable, _Flow] = {}

    def flow(self, atom: Atom) -> _Flow:
        """Returns the flow of a variable or a literal."""
        return self._flows.get(atom, _CONSTANT) if is_variable(atom) else _CONSTANT

    def add_argument(self, variable: Variable, argument: _Argument) -> None:
        """Adds an argument, with a leaf node if it requires a gradient."""
        name, requires, device = argument
        flow = _Flow(device=device, name=name)
        if requires:
            outputs = (structs(variable.aval),)
            leaf = Accumulate(outputs=outputs, device=device, argument=name)
            flow = flow._replace(node=leaf, arguments=frozenset([name]))
        self._flows[variable] = flow

    def add_step(self, step: Step) -> None:
        """Adds the results of a step, and its node if it has one."""
        flows = [self.flow(v) for v in step.invars]
        device = ", ".join(sorted({f.device for f in flows if f.device})) or None
        requiring = [flow for flow in flows if flow.requires]
        cuts = {flow.node: flow for flow in flows if isinstance(flow.node, Cut)}
        if requiring and step.equation.primitive.name == "stop_gradient":
            flow = _cut("stop_gradient", requiring, step, device)
        elif requiring:
            flow = self._record(step, flows, device)
        elif len(cuts) > 1:
            reasons = sorted({cut.reason for cut in cuts})
            flow = _cut("; ".join(reasons), cuts.values(), step, device)
        else:
            flow = next(iter(cuts.values()), _Flow())
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
            return _cut(zero, [flows[k] for k in wanted], step, device)
        ends = flows.copy()
        for k in set(wanted) - set(passing):
            ends[k] = _cut(zero, [flows[k]], step, device)
        edges = [
            ends[k].edge(atom, letters[k])
            for k, atom in enumerate(step.invars)
            if is_inexact(atom.aval)
        ]
        node = Operation(
            name=step.name,
            order=self._operations,
            outputs=_types(step),
            device=device,
            edges=tuple(edges),
            saved=tuple(saved),
            inner=_inner_graphs(step, flows),
            **wording(step.name, step.exponent, letters)._asdict(),
        )
        self._operations += 1
        return _Flow(node, arguments=_reached([flows[k] for k in passing]))


def _reached(flows: Iterable[_Flow]) -> frozenset[str]:
    return frozenset().union(*(flow.arguments for flow in flows))


def _types(step: Step) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(structs(v.aval) for v in step.outvars)


def _cut(reason: str, flows: Iterable[_Flow], step: Step, device: str | None) -> _Flow:
    """Returns the flow of the results of a step at which gradients end."""
    names = _reached(flows)
    arguments = tuple(sorted(names))
    cut = Cut(outputs=_types(step), device=device, reason=reason, arguments=arguments)
    return _Flow(cut, arguments=names)


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
        _Argument(flow.name or f"operand[{k}]", flow.requires, flow.device)
        for k, flow in enumerate(flows)
    ]
    graphs = []
    for name, jaxpr in named:
        equations = _inner_equations(jaxpr)
        outputs = [f"result[{k}]" for k, _ in enumerate(equations.results)]
        graphs.append(_graph_of(equations, name, arguments, outputs))
    return tuple(graphs)


def _inner_equations(jaxpr: Any) -> Equations:
    operands = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).invars]
    function = as_function(jaxpr, is_inlined)
    return trace(function, *structs(operands), is_inlined=is_inlined)[0]


def _scan_graph(step: Step, flows: Sequence[_Flow]) -> BackwardGraph:
    """Returns the graph of one step of a loop.

    The shapes tell constants and carries from the inputs of all steps, which have one
    axis more outside.
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
    per_step = len(equations.results) - len(carries)
    outputs = [*carries, *(f"output[{k}]" for k in range(per_step))]
    requires, devices = zip(*((flow.requires, flow.device) for flow in flows))
    while True:
        arguments = list(map(_Argument, names, requires, devices))
        graph = _graph_of(equations, "step", arguments, outputs)
        # Carries that a step makes depend on an argument that requires a gradient.
        after = [edge.carries_gradient for edge in graph.results[: len(carries)]]
        after = [a or b for a, b in zip(requires[start:end], after, strict=True)]
        if after == list(requires[start:end]):
            return graph
        requires = (*requires[:start], *after, *requires[end:])


def _which_require(
    argnums: int | Sequence[int] | None, args: Sequence[Any]
) -> list[bool]:
    """Returns for each leaf of the arguments whether it requires a gradient."""
    chosen = range(len(args)) if argnums is None else argnums
    numbers = [chosen] if isinstance(chosen, int) else list(chosen)
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise ValueError(
                f"`argnums` must be in [0, {len(args)}), because there are "
                f"{len(args)} arguments, got {number}."
            )
    required = {number % len(args) for number in numbers}
    if len(required) != len(numbers):
        raise ValueError(f"`argnums` must name each argument once, got {numbers}.")
    requires: list[bool] = []
    for number, tree in enumerate(args):
        leaves = jax.tree.leaves(tree)
        inexact = [number in required and is_inexact(leaf) for leaf in leaves]
        if argnums is not None and number in required and not all(inexact):
            dtypes = sorted({str(jnp.result_type(leaf)) for leaf in leaves})
            raise TypeError(
                f"argument {number} must have floating or complex leaves, because "
                f"`argnums` names it, got the dtypes {dtypes}."
            )
        requires += inexact
    return requires


def _as_function_of_params(fn: Callable, bound: nn.Module) -> tuple[Callable, Any]:
    """Returns the call of a bound module as a function of params, and its params."""
    assert bound.scope is not None
    rngs: Any = dict(bound.scope.rngs)
    module, variables = bound.unbind()
    method = None if fn is bound else fn.__name__

    def call(params: Any, *args: Any) -> Any:
        return module.apply(
            {**variables, "params": params}, *args, rngs=rngs, method=method
        )

    call.__name__ = type(module).__name__
    return call, variables.get("params", {})


def _device(leaf: Any) -> str | None:
    """Returns the device, or the devices, of an array."""
    if not isinstance(leaf, Array) or isinstance(leaf, jax.core.Tracer):
        return None
    return ", ".join(sorted(f"{d.platform}:{d.id}" for d in leaf.devices()))

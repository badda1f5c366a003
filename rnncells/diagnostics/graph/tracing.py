"""From a function to its backward graph."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.diagnostics.graph.backward_graph import BackwardGraph
from rnncells.diagnostics.graph.flows import Flow, Flows
from rnncells.diagnostics.graph.program import Program
from rnncells.diagnostics.graph.steps import Step, is_inlined, steps
from rnncells.recurrence.jaxprs import (
    Equations,
    as_function,
    is_variable,
    traced,
    variables,
)
from rnncells.recurrence.pytrees import is_inexact, structs


def backward_graph(
    fn: Callable, *args: Any, argnums: int | Sequence[int] | None = None
) -> BackwardGraph:
    """Returns what reverse-mode differentiation records of a function.

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
    bound = ()
    trees, requires = args, _requires(argnums, args)
    labels = _argument_names(fn, len(args))
    if _bound_module(fn) is not None:
        fn, params = _unbound(fn)
        bound, trees, labels = (params,), (params, *args), ["params", *labels]
        requires = [*_requires(None, (params,)), *requires]
    equations, result = traced(fn, *structs(trees), is_inlined=is_inlined)
    leaves = [
        Argument(name + jax.tree_util.keystr(path), required, _device(leaf))
        for name, required_leaves, tree in zip(labels, requires, trees, strict=True)
        for required, (path, leaf) in zip(
            required_leaves, jax.tree_util.tree_leaves_with_path(tree), strict=True
        )
    ]
    ends = jax.tree_util.tree_leaves_with_path(result)
    outputs = ["result" + jax.tree_util.keystr(path) for path, _ in ends]
    name = getattr(fn, "__name__", type(fn).__name__)
    own = structs(args)
    return _graph(equations, name, leaves, outputs, (bound, own, result))


class Argument(NamedTuple):
    """A leaf of the arguments.

    Attributes:
      name: its name.
      requires: whether it requires a gradient.
      device: where it is.
    """

    name: str
    requires: bool
    device: str | None = None


def _graph(
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
    variables = [v for leaves in equations.arguments for v in leaves]
    for variable, argument in zip(variables, arguments, strict=True):
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


def _of_jaxpr(
    name: str,
    jaxpr: Any,
    arguments: Sequence[Argument],
    outputs: Sequence[str] | None = None,
) -> BackwardGraph:
    equations = _inner_equations(jaxpr)
    if outputs is None:
        outputs = [f"result[{k}]" for k, _ in enumerate(equations.results)]
    return _graph(equations, name, arguments, outputs)


def _inner_equations(jaxpr: Any) -> Equations:
    operands = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).invars]
    function = as_function(jaxpr, is_inlined)
    return traced(function, *structs(operands), is_inlined=is_inlined)[0]


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
    first, last = constants, constants + carries
    while True:
        made = _requiring(equations, requires)[:carries]
        carried = [a or b for a, b in zip(requires[first:last], made, strict=True)]
        if carried == requires[first:last]:
            break
        requires[first:last] = carried
    devices = [flow.device for flow in flows]
    arguments = list(map(Argument, labels, requires, devices))
    outputs = [f"carry[{k}]" for k in range(carries)]
    outputs += [f"output[{k}]" for k in range(len(equations.results) - carries)]
    return _graph(equations, "step", arguments, outputs)


def _requiring(equations: Equations, requires: Sequence[bool]) -> list[bool]:
    """Returns which results require a gradient, given which arguments do."""
    leaves = [v for leaves in equations.arguments for v in leaves]
    found = {v for v, required in zip(leaves, requires, strict=True) if required}
    for equation in equations.equations:
        is_cut = equation.primitive.name == "stop_gradient"
        if not is_cut and found.intersection(variables(equation)):
            found.update(v for v in equation.outvars if is_inexact(v.aval))
    return [is_variable(v) and v in found for v in equations.results]


def _requires(
    argnums: int | Sequence[int] | None, args: Sequence[Any]
) -> list[list[bool]]:
    """Returns, for each argument and each of its leaves, if it requires a gradient."""
    given = range(len(args)) if argnums is None else argnums
    numbers = [given] if isinstance(given, int) else list(given)
    found = []
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise ValueError(
                f"`argnums` must be in [0, {len(args)}), because there are "
                f"{len(args)} arguments, got {number}."
            )
        found.append(number % len(args))
    if len(set(found)) != len(found):
        raise ValueError(f"`argnums` must name each argument once, got {numbers}.")
    requires = []
    for number, tree in enumerate(args):
        leaves = jax.tree.leaves(tree)
        inexact = [number in found and is_inexact(leaf) for leaf in leaves]
        if argnums is not None and number in found and not all(inexact):
            dtypes = sorted({str(jnp.result_type(leaf)) for leaf in leaves})
            raise TypeError(
                f"argument {number} must have floating or complex leaves, because "
                f"`argnums` names it, got the dtypes {dtypes}. Leave it out of "
                "`argnums`."
            )
        requires.append(inexact)
    return requires


def _argument_names(fn: Callable, count: int) -> list[str]:
    """Returns the names of a function's parameters, as far as it has them."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    labels = []
    for parameter in parameters:
        if parameter.kind == parameter.VAR_POSITIONAL:
            rest = range(count - len(labels))
            labels += [f"{parameter.name}[{k}]" for k in rest]
        elif parameter.kind != parameter.VAR_KEYWORD:
            labels.append(parameter.name)
    labels += [f"argument[{k}]" for k in range(len(labels), count)]
    return labels[:count]


def _bound_module(fn: Callable) -> nn.Module | None:
    """Returns the bound module that is called: itself, or by one of its methods."""
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    is_bound = isinstance(module, nn.Module) and module.scope is not None
    return module if is_bound else None


def _unbound(fn: Callable) -> tuple[Callable, Any]:
    """Returns the call of a bound module as a function of params, and its params."""
    bound = _bound_module(fn)
    module, variables = bound.unbind()
    others = {name: variables[name] for name in variables if name != "params"}
    method = None if fn is bound else fn.__name__
    rngs = dict(bound.scope.rngs)

    def call(params, *args):
        given = {**others, "params": params}
        return module.apply(given, *args, rngs=rngs, method=method)

    call.__name__ = type(module).__name__
    return call, variables.get("params", {})


def _device(leaf: Any) -> str | None:
    """Returns the device, or the devices, of an array."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return None
    return ", ".join(sorted(f"{d.platform}:{d.id}" for d in leaf.devices()))

"""A run of a backward graph: values are recorded, gradients are added up."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells._array_text import tree_text
from rnncells.diagnostics.graph.nodes import Edge, Node, Operation
from rnncells.diagnostics.graph.saved import vjp_of
from rnncells.diagnostics.graph.steps import Step
from rnncells.recurrence.jaxprs import Equations
from rnncells.recurrence.pytrees import StructTree, structs, zeros

if TYPE_CHECKING:
    from rnncells.diagnostics.graph.backward_graph import BackwardGraph


class Program(NamedTuple):
    """A function as steps, of which some are recorded.

    `recorded` has the node of a step, and the edges of the operands that get a
    gradient, by their numbers. `bound` are the params of a bound module, the first
    argument of `equations`. `arguments` and `result` are the shapes of the user's
    pytrees.
    """

    equations: Equations
    steps: tuple[Step, ...]
    recorded: dict[Step, tuple[Operation, dict[int, Edge]]]
    bound: tuple[Any, ...]
    arguments: tuple[Any, ...]
    result: StructTree


class Tape:
    """The values that one forward pass kept, and the gradients added up so far.

    `graph.record(*args)` returns a tape. Another forward pass has another tape.

    >>> import jax.numpy as jnp
    >>> from rnncells.diagnostics import backward_graph
    >>> x = jnp.float32(2)
    >>> graph = backward_graph(lambda x: x**3, x)
    >>> tape = graph.record(x)
    >>> tape.backward(retain_graph=True)
    {'x': Array(12., dtype=float32)}
    >>> tape.backward()
    {'x': Array(12., dtype=float32)}
    >>> tape.gradients
    {'x': Array(24., dtype=float32)}

    Attributes:
      graph: the graph.
      result: the result of the function.
      gradients: for each argument that a gradient has reached, by its name, the sum of
        its gradients over all calls of `backward` (PyTorch's `.grad`). To start again
        at 0, call `gradients.clear()`.
    """

    def __init__(self, graph: "BackwardGraph", program: Program, args: tuple[Any, ...]):
        """Runs the forward pass of the function on its arguments."""
        if structs(args) != program.arguments:
            raise ValueError(
                "the arguments of `record` must have the structure, shapes and dtypes "
                f"that the graph was made from, {tree_text(program.arguments)}, got "
                f"{tree_text(structs(args))}."
            )
        self.graph = graph
        self.gradients: dict[str, Array] = {}
        # Their backward passes, and where the gradients go from there.
        self._recorded: dict[Operation, tuple[Callable, list[Edge]]] = {}
        leaves = self._forward(program, jax.tree.leaves((program.bound, args)))
        self.result = jax.tree.unflatten(jax.tree.structure(program.result), leaves)

    def backward(
        self, cotangent: ArrayTree | None = None, retain_graph: bool = False
    ) -> dict[str, Array]:
        """Runs the backward pass, and adds its gradients to `gradients`.

        Gradients are those of `jax.vjp`: for complex arguments, the conjugates of
        PyTorch's.

        Args:
          cotangent: gradient of the loss with respect to the result, in the structure,
            shapes and dtypes of the result. Default: None: 1, for a real scalar.
          retain_graph: whether the saved values are kept for another backward pass.

        Returns:
          The gradients of this call by argument, without those in `graph.unreached`.

        Raises:
          ValueError: `cotangent` does not fit the result, or is None and the result is
            no real scalar; or no result requires a gradient.
          RuntimeError: an earlier call released the saved values, see `retain_graph`.
          NotImplementedError: the graph has a `while` loop, which has no reverse mode.
        """
        for node in self.graph.operations:
            if node not in self._recorded:
                formulas = ", ".join(value.formula for value in node.saved)
                raise RuntimeError(
                    "`backward` needs the values that the forward pass saved, got a "
                    f"tape that has released them: for example, {node.label} needs "
                    f"{formulas}. Pass `retain_graph=True` to every call of `backward` "
                    "but the last, or run `graph.record` again."
                )
        gradients = self._backward(self._cotangents(cotangent))
        if not retain_graph:
            for node in self.graph.operations:
                if node.saved:
                    del self._recorded[node]
        for name, gradient in gradients.items():
            total = self.gradients.get(name)
            self.gradients[name] = gradient if total is None else total + gradient
        return gradients

    def _forward(self, program: Program, leaves: list[Any]) -> list[Array]:
        equations = program.equations._replace(equations=program.steps)
        reachable = set(self.graph.operations)

        def record(step: Step, operands: list[Array]) -> list[Array]:
            node, edges = program.recorded.get(step, (None, {}))
            if node is None or node not in reachable:
                return step.function(*operands)
            if node.name == "While":
                raise NotImplementedError(
                    "reverse-mode differentiation is not defined for `while` loops, "
                    f"got {node.label}. Use `jax.lax.scan`, or `fori_loop` with "
                    "constant bounds."
                )
            results, vjp = vjp_of(step, operands, list(edges))
            self._recorded[node] = vjp, list(edges.values())
            return results

        results = equations(*map(jnp.asarray, leaves), rule=record)
        return [jnp.asarray(result) for result in results]

    def _cotangents(self, cotangent: ArrayTree | None) -> list[Array]:
        """Returns the gradients of the leaves of the result, checked."""
        if not any(edge.carries_gradient for edge in self.graph.results):
            raise ValueError(
                f"the result of `{self.graph.name}` must depend on an argument that "
                "requires a gradient, got a graph without operations and leaves. See "
                "`graph.unreached` for the reasons."
            )
        expected = structs(self.result)
        if cotangent is None:
            first, *rest = jax.tree.leaves(expected)
            is_real = jnp.issubdtype(first.dtype, jnp.floating)
            if rest or not is_real or first.shape:
                raise ValueError(
                    "`cotangent` can be omitted only if the result is one real scalar, "
                    f"got a result of {tree_text(expected)}. Pass `cotangent`: the "
                    "gradient of the loss with respect to the result."
                )
            cotangent = jax.tree.map(jnp.ones_like, expected)
        elif structs(cotangent) != expected:
            raise ValueError(
                "`cotangent` must have the structure, shapes and dtypes of the result, "
                f"{tree_text(expected)}, got {tree_text(structs(cotangent))}."
            )
        return [jnp.asarray(leaf) for leaf in jax.tree.leaves(cotangent)]

    def _backward(self, cotangents: list[Array]) -> dict[str, Array]:
        """Returns the gradients of the leaves, from those of the result."""
        sums: dict[tuple[Node | None, int], Array] = {}

        def send(edge: Edge, gradient: Array) -> None:
            if edge.carries_gradient:
                key = edge.node, edge.output
                sums[key] = sums[key] + gradient if key in sums else gradient

        for edge, cotangent in zip(self.graph.results, cotangents, strict=True):
            send(edge, cotangent)
        for node in self.graph.operations:
            vjp, edges = self._recorded[node]
            # An output that is not used has the gradient 0.
            cotangents = [
                sums.pop((node, k)) if (node, k) in sums else zeros(output)
                for k, output in enumerate(node.outputs)
                if jnp.issubdtype(output.dtype, jnp.inexact)
            ]
            for edge, gradient in zip(edges, vjp(cotangents), strict=True):
                send(edge, gradient)
        return {leaf.argument: sums[leaf, 0] for leaf in self.graph.leaves}

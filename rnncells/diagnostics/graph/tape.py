"""A run of the function of a backward graph, whose gradients are added up."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.jaxprs import Equations
from rnncells.recurrence.pytrees import StructTree, is_inexact, structs, tree_text

if TYPE_CHECKING:
    from rnncells.diagnostics.graph.backward_graph import BackwardGraph


class Program(NamedTuple):
    """A traced function.

    `names` are those of the leaves of its arguments. `bound` are the params of a bound
    module, the first argument of `equations`. `arguments` and `result` are the shapes
    of the user's pytrees.
    """

    equations: Equations
    names: tuple[str, ...]
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
        for node in graph.operations:
            if node.name == "While":
                raise NotImplementedError(
                    "reverse-mode differentiation is not defined for `while` loops, "
                    f"got {node.label}. Use `jax.lax.scan`, or `fori_loop` with "
                    "constant bounds."
                )
        self.graph = graph
        self.gradients: dict[str, Array] = {}
        values = [jnp.asarray(x) for x in jax.tree.leaves((program.bound, args))]
        places = {
            leaf.argument: program.names.index(leaf.argument) for leaf in graph.leaves
        }

        def forward(varied: dict[str, Array]) -> tuple[list[Array], list[Array]]:
            arguments = values.copy()
            for name, value in varied.items():
                arguments[places[name]] = value
            results = [jnp.asarray(x) for x in program.equations(*arguments)]
            return [r for r in results if is_inexact(r)], results

        varied = {name: values[place] for name, place in places.items()}
        # The backward pass, None when its saved values are released.
        self._vjp: Callable | None
        _, self._vjp, results = jax.vjp(forward, varied, has_aux=True)
        self.result = jax.tree.unflatten(jax.tree.structure(program.result), results)

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
        saving = [node for node in self.graph.operations if node.saved]
        if self._vjp is None:
            formulas = ", ".join(value.formula for value in saving[0].saved)
            raise RuntimeError(
                "`backward` needs the values that the forward pass saved, got a tape "
                f"that has released them: for example, {saving[0].label} needs "
                f"{formulas}. Pass `retain_graph=True` to every call of `backward` but "
                "the last, or run `graph.record` again."
            )
        (gradients,) = self._vjp(self._cotangents(cotangent))
        if saving and not retain_graph:
            self._vjp = None
        for name, gradient in gradients.items():
            total = self.gradients.get(name)
            self.gradients[name] = gradient if total is None else total + gradient
        return gradients

    def _cotangents(self, cotangent: ArrayTree | None) -> list[Array]:
        """Returns the checked gradients of the inexact leaves of the result."""
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
        leaves = map(jnp.asarray, jax.tree.leaves(cotangent))
        return [leaf for leaf in leaves if is_inexact(leaf)]

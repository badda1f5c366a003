"""From a function to its backward graph."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from rnncells.diagnostics.graph.arguments import (
    argument_leaves,
    argument_names,
    as_function_of_params,
    bound_module,
    which_require,
)
from rnncells.diagnostics.graph.backward_graph import BackwardGraph
from rnncells.diagnostics.graph.builder import graph_of
from rnncells.diagnostics.graph.steps import is_inlined
from rnncells.recurrence.jaxprs import trace
from rnncells.recurrence.pytrees import structs


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
    bound, trees = (), args
    requires, labels = which_require(argnums, args), argument_names(fn, len(args))
    if bound_module(fn) is not None:
        fn, params = as_function_of_params(fn)
        bound, trees, labels = (params,), (params, *args), ["params", *labels]
        requires = [*which_require(None, bound), *requires]
    equations, result = trace(fn, *structs(trees), is_inlined=is_inlined)
    ends = jax.tree_util.tree_leaves_with_path(result)
    return graph_of(
        equations,
        getattr(fn, "__name__", type(fn).__name__),
        argument_leaves(trees, labels, requires),
        ["result" + jax.tree_util.keystr(path) for path, _ in ends],
        (bound, structs(args), result),
    )

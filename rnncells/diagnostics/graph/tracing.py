"""From a function and its arguments to its backward graph."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.diagnostics.graph.backward_graph import BackwardGraph
from rnncells.diagnostics.graph.builder import Argument, graph_of
from rnncells.diagnostics.graph.steps import is_inlined
from rnncells.recurrence.jaxprs import trace
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
    requires, labels = _which_require(argnums, args), _argument_names(fn, args)
    if (module := _bound_module(fn)) is not None:
        fn, params = _as_function_of_params(fn, module)
        bound, labels = (params,), ["params", *labels]
        requires = [*_which_require(None, bound), *requires]
    trees = (*bound, *args)
    arguments = [
        Argument(label + jax.tree_util.keystr(path), is_required, _device(leaf))
        for label, tree, required in zip(labels, trees, requires, strict=True)
        for (path, leaf), is_required in zip(
            jax.tree_util.tree_leaves_with_path(tree), required, strict=True
        )
    ]
    equations, result = trace(fn, *structs(trees), is_inlined=is_inlined)
    ends = jax.tree_util.tree_leaves_with_path(result)
    return graph_of(
        equations,
        getattr(fn, "__name__", type(fn).__name__),
        arguments,
        ["result" + jax.tree_util.keystr(path) for path, _ in ends],
        (bound, structs(args), result),
    )


def _which_require(
    argnums: int | Sequence[int] | None, args: Sequence[Any]
) -> list[list[bool]]:
    """Returns, for each argument and each of its leaves, if it requires a gradient."""
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
    requires = []
    for number, tree in enumerate(args):
        leaves = jax.tree.leaves(tree)
        inexact = [number in required and is_inexact(leaf) for leaf in leaves]
        if argnums is not None and number in required and not all(inexact):
            dtypes = sorted({str(jnp.result_type(leaf)) for leaf in leaves})
            raise TypeError(
                f"argument {number} must have floating or complex leaves, because "
                f"`argnums` names it, got the dtypes {dtypes}. Leave it out of "
                "`argnums`."
            )
        requires.append(inexact)
    return requires


def _argument_names(fn: Callable, args: Sequence[Any]) -> list[str]:
    """Returns the names of a function's arguments, as far as it has them."""
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args).arguments
    except (TypeError, ValueError):
        return [f"argument[{k}]" for k in range(len(args))]
    labels: list[str] = []
    for name, value in bound.items():
        is_rest = signature.parameters[name].kind == inspect.Parameter.VAR_POSITIONAL
        labels += [f"{name}[{k}]" for k in range(len(value))] if is_rest else [name]
    return labels


def _bound_module(fn: Callable) -> nn.Module | None:
    """Returns the bound module that is called: itself, or by one of its methods."""
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    is_bound = isinstance(module, nn.Module) and module.scope is not None
    return module if is_bound else None


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
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return None
    return ", ".join(sorted(f"{d.platform}:{d.id}" for d in leaf.devices()))

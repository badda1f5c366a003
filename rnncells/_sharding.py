"""Shardings of parameters over several devices."""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def feature_shardings(params: Any, mesh: Mesh, axis: str = "model") -> Any:
    """Returns shardings of parameters by features over an axis of a mesh.

    The last axis of every parameter of cells and layers is features, and this is the
    axis that is sharded. Pass the result to `jax.device_put`, or as `in_shardings` and
    `out_shardings` of `jax.jit`. The layers need no argument: XLA shards the states,
    and each step gathers them. `docs/scaling.md` lists the communication of each cell.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from jax.sharding import AxisType
    >>> mesh = jax.make_mesh(
    ...     (jax.device_count(),), ("model",), axis_types=(AxisType.Auto,)
    ... )
    >>> rnn, x = rnncells.RNN(rnncells.GRUCell(16)), jnp.ones((2, 5, 3))
    >>> shapes = jax.eval_shape(rnn.init, jax.random.key(0), x)
    >>> shardings = rnncells.feature_shardings(shapes, mesh, "model")
    >>> tuple(shardings["params"]["cell"]["hr"]["kernel"].spec)
    (None, 'model')
    >>> params = jax.jit(rnn.init, out_shardings=shardings)(jax.random.key(0), x)
    >>> jax.jit(rnn.apply)(params, x).shape
    (2, 5, 16)

    Args:
      params: pytree of arrays or `jax.ShapeDtypeStruct` objects: parameters, or the
        state of an optimizer. Arrays without axes are replicated.
      mesh: the devices. All its axes have the type `AxisType.Auto`.
      axis: name of the axis of the mesh. Default: `'model'`.

    Returns:
      A pytree of `NamedSharding` objects with the structure of `params`.

    Raises:
      ValueError: the mesh has no such axis or an axis of another type, or the last axis
        of an array is not divisible by the size of the axis.
      TypeError: `mesh` is not a `jax.sharding.Mesh`.
    """
    _check_mesh(mesh, axis)
    _check_divisible(params, axis, mesh.shape[axis])

    def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        features = [axis] if leaf.ndim else []
        replicated = [None] * (leaf.ndim - len(features))
        return NamedSharding(mesh, PartitionSpec(*replicated, *features))

    return jax.tree.map(sharding, params)


def _check_mesh(mesh: Any, axis: str) -> None:
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` must be a jax.sharding.Mesh, got {mesh!r}.")
    if axis not in mesh.axis_names:
        raise ValueError(
            f"`axis` must be one of the axes of the mesh, {mesh.axis_names}, got "
            f"{axis!r}."
        )
    other_types = [t for t in mesh.axis_types if t != AxisType.Auto]
    if other_types:
        raise ValueError(
            "`mesh` must have only axes of the type AxisType.Auto, got "
            f"{mesh.axis_types}. Pass `axis_types=(AxisType.Auto,) * "
            f"{len(mesh.axis_types)}` to jax.make_mesh: its default is explicit "
            "sharding, which the fast loop of RNN does not support."
        )


def _check_divisible(params: Any, axis: str, size: int) -> None:
    misfits = [
        f"{jax.tree_util.keystr(path)} {leaf.shape}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if leaf.ndim and leaf.shape[-1] % size
    ]
    if misfits:
        raise ValueError(
            f"the last axis of each array must be divisible by {size}, the size of the "
            f"mesh axis {axis!r}, got {', '.join(misfits)}. Choose such a number of "
            "features, or pass only the parameters of the recurrent layers."
        )

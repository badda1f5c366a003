"""Meshes and shardings, as far as they are known while a function is traced."""

from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def has_mesh_types(tree: Any) -> bool:
    """Says whether types differ by device, as in `shard_map` and explicit sharding.

    What a function makes anew, zeros say, then does not fit what it is given.
    """
    # Arrays can lie on a mesh that is not set.
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(tree)]
    meshes.append(jax.sharding.get_abstract_mesh())
    explicit = [mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types]
    return bool(explicit or varying_axes(tree))


def varying_axes(tree: Any) -> frozenset[str]:
    """Returns the mesh axes over which arrays vary, in `shard_map` with `check_vma`."""
    types = [jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]
    return frozenset().union(*[t.manual_axis_type.varying for t in types])


def varying_over(tree: Any, axes: frozenset[str]) -> Any:
    """Returns a tree whose arrays vary over mesh axes, as a loop's carry must."""

    def vary(leaf: Array) -> Array:
        missing = axes - varying_axes(leaf)
        return jax.lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(vary, tree)


def sharded_as_batch(tree: Any, inputs: Any, batch: int, axis: int | None) -> Any:
    """Returns `(*batch, ...)` with the explicit sharding of the batch of inputs.

    The inputs have `batch` axes first, apart from the time axis at `axis`, if any.
    """
    sharding = jax.typeof(inputs).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return tree
    if not isinstance(inputs, jax.core.Tracer):
        sharding = inputs.sharding  # its mesh has devices
    spec = [*sharding.spec, *[None] * (inputs.ndim - len(sharding.spec))]
    rows = P(*[name for k, name in enumerate(spec) if k != axis][:batch])
    sharding = NamedSharding(sharding.mesh, rows)
    return jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, sharding), tree)


def may_be_sharded() -> bool:
    """Says whether JAX sees several devices: all that is known while tracing."""
    return jax.device_count() > 1

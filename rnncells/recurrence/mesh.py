"""What is known of devices while a function is traced."""

from typing import Any

import jax
from jax.sharding import AxisType


def has_mesh_types(tree: Any) -> bool:
    """Says whether types differ by device, as in `shard_map` and explicit sharding.

    What a function makes anew, zeros say, then does not fit what it is given.
    """
    types = [jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]
    # Arrays can lie on a mesh that is not set.
    meshes = [jax.sharding.get_abstract_mesh(), *(t.sharding.mesh for t in types)]
    is_explicit = any(AxisType.Explicit in mesh.axis_types for mesh in meshes)
    return is_explicit or any(t.manual_axis_type.varying for t in types)


def may_be_sharded() -> bool:
    """Says whether JAX sees several devices, so that arrays can be sharded over them.

    With automatic sharding, nothing else is known of it while a function is traced.
    """
    return jax.device_count() > 1

"""Arrays whose types tell how they lie on a mesh of devices."""

from typing import Any

import jax
from jax.sharding import AxisType


def has_mesh_types(tree: Any) -> bool:
    """Says whether types differ by device, as in `shard_map` and explicit sharding.

    What a function makes anew, zeros say, then does not fit what it is given.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit in mesh.axis_types:
        return True
    types = [jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]
    return any(of_leaf.manual_axis_type.varying for of_leaf in types)

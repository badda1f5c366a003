"""The modules of `flax.linen`, importable from the shim by their names.

They are Flax's own. As files of copied names, private ones would be missing, and
`nn.module` would be one thing or another by what else was imported.
"""

import sys

import flax.linen as nn

# Flax imports all others by itself.
from flax.linen import partitioning as partitioning

for _name, _value in vars(nn).items():
    _is_module = getattr(_value, "__name__", "") == f"{nn.__name__}.{_name}"
    # The shim has a `recurrent` of its own.
    if _is_module and _name != "recurrent":
        sys.modules[f"{__package__}.{_name}"] = _value

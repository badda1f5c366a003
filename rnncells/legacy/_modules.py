"""The modules of `flax.linen`, importable as modules of the shim.

They are Flax's own module objects. Copies would lack the private names, and `nn.module`
would depend on what else was imported.
"""

import sys

import flax.linen as nn

# Flax imports all its other modules.
from flax.linen import partitioning as partitioning

for _name, _value in vars(nn).items():
    _is_module = getattr(_value, "__name__", "") == f"{nn.__name__}.{_name}"
    # The shim has its own `recurrent`.
    if _is_module and _name != "recurrent":
        sys.modules[f"{__package__}.{_name}"] = _value

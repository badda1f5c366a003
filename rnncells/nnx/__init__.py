"""Cells and layers as modules of Flax NNX.

All cells and layers of rnncells are here; `FromLinen` describes what they share.
"""

import importlib

import flax
import jax

try:
    importlib.import_module("flax.nnx")
except (AttributeError, ImportError) as error:
    raise ImportError(
        "`rnncells.nnx` needs a version of flax whose `flax.nnx` can be imported: flax "
        f">= 0.12.10 with jax >= 0.11.1. Found flax {flax.__version__} and jax "
        f"{jax.__version__}. Install a newer flax."
    ) from error

from flax import linen as _linen

from rnncells import public as _public
from rnncells.nnx.converting import check_cell as check_cell
from rnncells.nnx.converting import convert as convert
from rnncells.nnx.from_linen import FromLinen as FromLinen
from rnncells.nnx.from_linen import from_linen as from_linen
from rnncells.nnx.to_linen import to_linen as to_linen

# Classes to derive from, which are no cells or layers themselves.
_BASES = {
    *("RNNCellBase", "LinearRNNCellBase", "MatrixRNNCellBase", "ElementwiseAffine"),
    *("VariationalDropout", "SequenceLayer"),
}
# Type checkers read the names of these classes in `__init__.pyi`.
for _name, _class in vars(_public).items():
    if isinstance(_class, type) and issubclass(_class, _linen.Module):
        if _name not in _BASES:
            globals()[_name] = from_linen(_class)
            globals()[_name].__module__ = __name__

"""Equations of all cells, one function for each, in a file for each family.

A function `(params, carry, x, **options) -> (carry, output)` reads as NumPy and runs
with arrays of NumPy and of JAX. The decorator names the cell's class. Its arguments are
the options of the cells that the shared tests walk, see `equations.table.equations`.
"""

from importlib import import_module
from pkgutil import iter_modules

for module in iter_modules(__path__, "equations."):
    import_module(module.name)

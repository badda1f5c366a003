"""Recurrent cells for Flax, and the layers that run them over sequences.

`rnncells/public.py` lists the public names. They are imported when one of them is first
used (PEP 562), so that `rnncells migrate` runs without JAX and Flax.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
# In rnncells/deprecated.py.
_OLD_NAMES = ("DeepRNN", "Diagonal")

if TYPE_CHECKING:
    from rnncells.public import *
else:
    # Type checkers do not see this function: it would hide misspelled names from them.
    def __getattr__(name: str) -> Any:
        """Imports a submodule or, for any other name, all public names."""
        if name == "__all__" or (name.isidentifier() and not name.startswith("_")):
            full_name = f"{__name__}.{name}"
            if importlib.util.find_spec(full_name) is not None:
                return importlib.import_module(full_name)
            # Names that the user has set keep their values.
            globals().update({**_public_names(), **globals()})
            if name in globals():
                return globals()[name]
            if name in _OLD_NAMES:
                return getattr(importlib.import_module("rnncells.deprecated"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__doc__", "__version__", *_public_names()])


def _public_names() -> dict[str, Any]:
    listed = vars(importlib.import_module("rnncells.public"))
    names = {name: listed[name] for name in listed if not name.startswith("_")}
    return {**names, "__all__": sorted(names)}

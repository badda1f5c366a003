"""Imports submodules when they are first used (PEP 562), without JAX and Flax."""

import importlib
import importlib.util
import pkgutil
import sys
from types import ModuleType


def attach(package: str) -> None:
    """Gives a package the functions `__getattr__` and `__dir__` for its submodules.

    A package calls it in its `__init__.py`: `_lazy.attach(__name__)`. There is no
    `def __getattr__` in the package, because that would hide misspelled names from type
    checkers.
    """
    module = sys.modules[package]

    def __getattr__(name: str) -> ModuleType:
        if is_submodule(package, name):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        special = [name for name in vars(module) if name.startswith("__")]
        modules = [info.name for info in pkgutil.iter_modules(module.__path__)]
        return sorted([*special, *(n for n in modules if is_submodule(package, n))])

    vars(module).update(__getattr__=__getattr__, __dir__=__dir__)


def is_submodule(package: str, name: str) -> bool:
    """Tells whether a package has a public submodule, without importing that."""
    if not name.isidentifier() or name.startswith("_"):
        return False
    return importlib.util.find_spec(f"{package}.{name}") is not None

"""Names of the arrays that a step computes: the variables in its code.

While JAX traces a step, a profile function (`sys.setprofile`) sees each method return
and marks the arrays among its local variables in the jaxpr. The cell does not change.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from rnncells.cells.any_cell import is_cell
from rnncells.cells.base import RNNCellBase

PREFIX = "rnncells.diagnostics:"
# Methods of these classes and of their bases are no methods of a cell.
_BASES = {*RNNCellBase.__mro__, *nn.RNNCellBase.__mro__}


@contextlib.contextmanager
def marked_variables() -> Iterator[None]:
    """Marks the local variables of modules while JAX traces their methods.

    The mark of an array is an equation of `jax.ad_checkpoint.checkpoint_name` in the
    jaxpr, whose result nothing reads. `name_of` returns its name.
    """
    earlier = sys.getprofile()
    sys.setprofile(_LocalVariableMarker())
    try:
        yield
    finally:
        if earlier is None or callable(earlier):
            sys.setprofile(earlier)
        else:
            # Before Python 3.12, cProfile's profiler is here. It is not callable.
            sys.setprofile(None)
            earlier.enable()


def mark(array: Any, name: str) -> Any:
    """Returns an array, marked by a name in the jaxpr."""
    return checkpoint_name(array, PREFIX + name)


def name_of(equation: Any) -> str | None:
    """Returns the name of the mark that an equation is, or None if it is no mark."""
    if equation.primitive.name != "name":
        return None
    name = equation.params["name"]
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


class _LocalVariableMarker:
    """A profile function that marks local variables of methods when they return."""

    def __init__(self) -> None:
        self.codes: dict[type, set[CodeType]] = {}
        self.arguments: dict[FrameType, dict[str, Any]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        module = self._module(frame)
        if module is None:
            return
        if event == "call":
            self.arguments[frame] = dict(frame.f_locals)
            return
        unchanged = self.arguments.pop(frame, {})
        assert module.scope is not None
        path = "/".join(map(str, module.scope.path))
        for name, value in frame.f_locals.items():
            if not isinstance(value, jax.core.Tracer) or name.startswith("_"):
                continue
            if unchanged.get(name) is not value:
                mark(value, f"{path}/{name}".lstrip("/"))

    def _module(self, frame: FrameType) -> nn.Module | None:
        """Returns the module whose method a frame runs; None for other frames."""
        code = frame.f_code
        if not code.co_argcount:
            return None
        module = frame.f_locals.get(code.co_varnames[0])
        if not isinstance(module, nn.Module) or module.scope is None:
            return None
        kind = type(module)
        if kind not in self.codes:
            self.codes[kind] = _codes(module)
        return module if code in self.codes[kind] else None


def _codes(module: nn.Module) -> set[CodeType]:
    """Returns the code of the methods whose variables count."""
    is_library = type(module).__module__.partition(".")[0] in ("flax", "rnncells")
    if is_library and not is_cell(module):
        return set()  # parts of a cell, such as `nn.Dense`
    codes = set()
    for cls in type(module).__mro__:
        methods = () if cls in _BASES else vars(cls).items()
        for name, method in methods:
            if name == "setup" or (name.startswith("_") and name != "__call__"):
                continue
            while hasattr(method, "__wrapped__"):
                method = method.__wrapped__
            if hasattr(method, "__code__"):
                codes.add(method.__code__)
    return codes

"""The jaxpr of a step, evaluated with all its named values and with taps on them.

While JAX traces a step, a profile function (`sys.setprofile`) sees each method return
and marks the arrays among its local variables, by their names, in the jaxpr.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from rnncells.cells.any_cell import apply_step, is_cell
from rnncells.cells.base import RNNCellBase
from rnncells.cells.carry import Carry
from rnncells.recurrence.jaxprs import (
    bind,
    evaluate,
    is_variable,
    live_equations,
    read,
    trace,
)

PREFIX = "rnncells.diagnostics:"
# Methods of these classes and of their bases are no methods of a cell.
_BASES = {*RNNCellBase.__mro__, *nn.RNNCellBase.__mro__}
# Names of marks that no variable in Python can have.
_BEFORE, _AFTER = "<", ">"


class StepValues(NamedTuple):
    """Arrays by name and leaves of the new carry: of a step, or taps on it.

    A tap is an array that is added to a value; None adds nothing.
    """

    values: dict[str, Any]
    carry: list[Any]


def marked(step: Callable = apply_step) -> Callable:
    """Returns `step(cell, carry, inputs)` with marks on its variables."""

    def marked_step(cell: nn.Module, carry: Carry, inputs: Any) -> tuple[Carry, Any]:
        carry = _mark_leaves(carry, _BEFORE)
        with _marked_variables():
            new, output = step(cell, carry, inputs)
        return _mark_leaves(new, _AFTER), output

    return marked_step


def _mark_leaves(tree: ArrayTree, name: str) -> ArrayTree:
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [_mark(leaf, f"{name}{k}") for k, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, leaves)


class NamedStep:
    """A step as a jaxpr with marks.

    `function(consts, inputs, carry)` is pure, and calls a step that `marked` returns,
    once; `consts` are the same at each step. `result` has the shapes and dtypes of its
    result.
    """

    def __init__(
        self, function: Callable, consts: ArrayTree, inputs: ArrayTree, carry: ArrayTree
    ):
        # A cached trace of a jitted function would run no Python code.
        with jax.disable_jit():
            self._traced, self.result = trace(function, consts, inputs, carry)
        equations = tuple(self._traced.jaxpr.eqns)
        marks = {
            e.params["name"].removeprefix(PREFIX): e
            for e in equations
            if e.primitive.name == "name" and e.params["name"].startswith(PREFIX)
        }
        passed = {e.outvars[0] for name, e in marks.items() if name.startswith(_BEFORE)}
        self._after = []
        for name, equation in marks.items():
            if name.startswith(_AFTER):
                leaf = equation.invars[0]
                # A leaf that the step did not change is tapped after the step.
                is_new = is_variable(leaf) and leaf not in passed
                self._after.append(leaf if is_new else equation.outvars[0])
        stages = self._traced._replace(equations=equations).stages()
        self._named = {
            name: e.invars[0]
            for name, e in marks.items()
            if name[0] not in (_BEFORE, _AFTER)
            and is_variable(e.invars[0])
            and stages[e.invars[0]] > 0  # depends on more than `consts`
            and not jnp.issubdtype(e.invars[0].aval.dtype, jax.dtypes.extended)
        }
        wanted = [*self._traced.results, *self._named.values(), *self._after]
        self._equations = live_equations(equations, wanted)

    def __call__(
        self,
        consts: ArrayTree,
        inputs: ArrayTree,
        carry: ArrayTree,
        taps: StepValues | None = None,
    ) -> tuple[ArrayTree, StepValues]:
        """Returns the result of the function, and the values of the step."""
        added = {} if taps is None else self._added(taps)

        def add_taps(equation: Any, operands: list[Array]) -> list[Array]:
            results = bind(equation, operands)
            return [
                sum(added.get(v, ()), r)
                for v, r in zip(equation.outvars, results, strict=True)
            ]

        values = self._traced.initial_values(consts, inputs, carry)
        values |= {v: sum(taps, values[v]) for v, taps in added.items() if v in values}
        evaluate(self._equations, values, add_taps)
        result = jax.tree.unflatten(
            jax.tree.structure(self.result), read(values, self._traced.results)
        )
        named = {name: values[v] for name, v in self._named.items()}
        return result, StepValues(named, [values[v] for v in self._after])

    def _added(self, taps: StepValues) -> dict[Any, list[Array]]:
        """Returns the taps of each variable; names of one variable share its place."""
        added: dict[Any, list[Array]] = {}
        places = [(self._named[name], tap) for name, tap in taps.values.items()]
        for variable, tap in [*places, *zip(self._after, taps.carry, strict=True)]:
            if tap is not None:
                added.setdefault(variable, []).append(tap)
        return added


@contextlib.contextmanager
def _marked_variables() -> Iterator[None]:
    """Marks the local variables of modules while JAX traces their methods.

    The mark of an array is an equation of `jax.ad_checkpoint.checkpoint_name` in the
    jaxpr, whose result nothing reads.
    """
    arguments: dict[FrameType, dict[str, Any]] = {}
    codes: dict[type, set[CodeType]] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        module = _module(frame) if event in ("call", "return") else None
        if module is None:
            return
        if type(module) not in codes:
            codes[type(module)] = _codes(module)
        if frame.f_code not in codes[type(module)]:
            return
        if event == "call":
            arguments[frame] = dict(frame.f_locals)
            return
        unchanged = arguments.pop(frame, {})
        path = "/".join(map(str, module.scope.path))
        for name, value in frame.f_locals.items():
            is_array = isinstance(value, jax.core.Tracer) and not name.startswith("_")
            if is_array and unchanged.get(name) is not value:
                _mark(value, f"{path}/{name}".lstrip("/"))

    earlier = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        if earlier is None or callable(earlier):
            sys.setprofile(earlier)
        else:
            # Before Python 3.12, cProfile's profiler is here. It is not callable.
            sys.setprofile(None)
            earlier.enable()


def _mark(array: Any, name: str) -> Any:
    """Returns an array, marked by a name in the jaxpr."""
    return checkpoint_name(array, PREFIX + name)


def _module(frame: FrameType) -> Any:
    """Returns the bound module that is the first argument of a frame's function."""
    code = frame.f_code
    module = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    is_bound = isinstance(module, nn.Module) and module.scope is not None
    return module if is_bound else None


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

"""The dtype of a carry: once JAX's default float, since Flax 0.7 `param_dtype`."""

import ast
from functools import lru_cache

from rnncells.migrate.code.names import argument, last_name
from rnncells.migrate.code.program import Program

ENABLE_X64 = {"jax_enable_x64", "JAX_ENABLE_X64", "enable_x64"}
# `float` is float32, and float64 under x64, as JAX's default is; float64 is cut to it.
DEFAULT_FLOAT = {"float", "float_", "float64", "double"}
NARROW = {"float32", "float16", "bfloat16", "single", "half"}
WHY = (
    "the carry was in JAX's default float and now has the cell's `param_dtype`: if "
    "they differ, construct its cell with `param_dtype=float, parent=None`"
)


def param_dtype(program: Program, made: ast.Call) -> ast.expr | None:
    """Returns the argument `param_dtype` of a call that makes a cell, if given."""
    given = program.names.keywords(made) or {}
    # By position it is the seventh argument.
    return given.get("param_dtype", argument(made, "param_dtype", 6))


@lru_cache(maxsize=1)
def may_be_float64(program: Program) -> bool:
    """Returns whether carries of a file may have been float64.

    The file enables x64, or gives a cell a `param_dtype` that may be float64.
    """
    given = (
        param_dtype(program, call)
        for call in program.calls
        if program.cell_class(call.func) is not None
    )
    return any(_name(program, node) not in NARROW for node in given if node) or any(
        last_name(node) in ENABLE_X64 or _text(node) in ENABLE_X64
        for node in program.source.nodes
    )


def _name(program: Program, node: ast.expr) -> str:
    """Returns the name of a dtype: `float32` of `jnp.float32` or `"float32"`."""
    node = program.names.value(node)
    return _text(node) or last_name(node)


def _text(node: ast.AST) -> str:
    value = getattr(node, "value", "") if isinstance(node, ast.Constant) else ""
    return value if isinstance(value, str) else ""


def why_other_dtype(program: Program, made: ast.Call | None) -> str:
    """Returns why a cell's carry may have another dtype than before, or "".

    Args:
      made: the call that makes the cell; None if it is not known.
    """
    given = None if made is None else param_dtype(program, made)
    if given is None:
        return WHY if may_be_float64(program) else ""
    name = _name(program, given)
    is_default = name == "float32" and not may_be_float64(program)
    return "" if is_default or name in DEFAULT_FLOAT else WHY

"""Calls of `initialize_carry`, old and new."""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

from rnncells.migrate.code.cells import CellClass
from rnncells.migrate.code.kinds import OTHER
from rnncells.migrate.code.names import Binding, last_name
from rnncells.migrate.code.own_cells import stays
from rnncells.migrate.code.program import COUNT, PURE, Program

OLD_NAMES = ("rng", "batch_dims", "size", "init_fn")
# Names of attributes that hold a cell, which is made in another file.
CELL = re.compile(r"(^|_)(cell|rnn|lstm|gru|core)s?$")
# Names of variables that hold a class of cells, which comes from another file.
CLASS = re.compile(r"(^|_)(cell|rnn|lstm|gru|core)_?(cls|class|type)$", re.IGNORECASE)
# Names of random keys.
KEY = re.compile(r"(^|_|prng)(key|rng)s?\d*$", re.IGNORECASE)


@dataclass(frozen=True)
class CarryCall:
    """A call of `initialize_carry` on a class, or with three arguments or more.

    Attributes:
      node: the call.
      of_class: the class that the method is called on; None for an instance.
      arguments: the expressions given, by the old names of the parameters.
      is_sure: whether the receiver is known to be a cell or a class of cells.
    """

    node: ast.Call
    of_class: CellClass | None
    arguments: dict[str, ast.expr]
    is_sure: bool = True

    @property
    def receiver(self) -> ast.expr:
        return self.node.func.value

    @property
    def size(self) -> ast.expr | None:
        return self.arguments.get("size")


def is_carry_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "initialize_carry"
    )


def old_carry_call(program: Program, node: ast.AST) -> CarryCall | None:
    """Returns a call in the old form, or None for any other node."""
    if not is_carry_call(node):
        return None
    receiver, kind = node.func.value, program.kinds.of(node.func.value)
    is_unbound = bool(node.args) and program.names.is_self(node.args[0])
    if kind == OTHER or is_unbound or stays(program.names, receiver):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    is_old = len(node.args) > 2 or set(OLD_NAMES[1:]) & set(keywords)
    if kind.cell_class is None and not is_old:
        return None
    if program.has_nnx and not program.has_linen:
        # Cells of nnx have an `initialize_carry` with three arguments too.
        return None
    if any(isinstance(arg, ast.Starred) for arg in node.args) or None in keywords:
        return CarryCall(node, kind.cell_class, {})
    arguments = {**dict(zip(OLD_NAMES, node.args, strict=False)), **keywords}
    if kind.cell_class is not None or kind.is_cell:
        return CarryCall(node, kind.cell_class, arguments)
    if not _may_be_old(program, arguments):
        return CarryCall(node, None, {}, is_sure=False)
    is_sure = (
        not kind.classes
        and program.has_linen
        and not program.has_nnx
        and _is_named_as_a_cell(program, receiver)
    )
    return CarryCall(node, None, arguments, is_sure)


@lru_cache(maxsize=1)
def old_carry_calls(program: Program) -> list[CarryCall]:
    """Returns all calls of a file in the old form."""
    calls = (old_carry_call(program, node) for node in program.calls)
    return [call for call in calls if call is not None]


def carry_call_of(binding: Binding) -> ast.Call | None:
    """Returns the carry call whose hidden state a name is bound to, or None.

    That is the whole carry, or `h` of `c, h = LSTMCell.initialize_carry(...)`.
    """
    value, at = binding.part_of or (binding.value, 1)
    return value if at == 1 and is_carry_call(value) else None


def _may_be_old(program: Program, arguments: dict[str, ast.expr]) -> bool:
    """Returns whether the arguments may be `batch_dims` and `size`."""
    batch, size = (arguments.get(name) for name in OLD_NAMES[1:3])
    has_key = any(_is_key(program, node) for node in (batch, size))
    return not has_key and not _is_number(program, batch)


def _is_key(program: Program, node: ast.expr | None) -> bool:
    """Returns whether an argument is a random key, by its name."""
    named = last_name(program.names.value(node))
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    is_jax = (program.names.qualified(node) or "").startswith("jax.random.")
    return is_jax or any(KEY.search(name) for name in (named, last_name(node)))


def _is_number(program: Program, node: ast.expr | None) -> bool:
    """Returns whether an argument is one number, by its form, type or name."""
    node = program.names.value(node)
    if isinstance(node, ast.BinOp):
        return all(_is_number(program, part) for part in (node.left, node.right))
    if isinstance(node, ast.Subscript):
        is_part = not isinstance(node.slice, ast.Slice)
        return is_part and last_name(node.value) == "shape"
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in PURE - {"list", "tuple"}
    found = program.names.only(node)
    annotation, default = (getattr(found, n, None) for n in ("annotation", "default"))
    default = getattr(default, "value", None)
    is_typed = last_name(annotation) == "int" or isinstance(default, int)
    is_named = COUNT.search(last_name(node)) is not None
    return isinstance(node, ast.Constant) or is_typed or is_named


def _is_instance(program: Program, node: ast.expr) -> bool:
    """Returns whether an expression is an instance: a class may hold cell classes."""
    node = program.names.value(node)
    if isinstance(node, ast.Call):
        return last_name(node.func) != "type"
    name = last_name(node)
    is_class = name in ("cls", "__class__") or name[:1].isupper()
    return not is_class and program.names.class_named(node) is None


def _is_named_as_a_cell(program: Program, node: ast.expr) -> bool:
    """Returns whether an attribute of an instance is a cell by its name.

    A parameter or local variable of such a name may as well be a class.
    """
    while isinstance(node, ast.Subscript):
        node = node.value
    is_attribute = isinstance(node, ast.Attribute) and _is_instance(program, node.value)
    return is_attribute and CELL.search(last_name(node)) is not None

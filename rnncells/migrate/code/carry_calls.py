"""Calls of `initialize_carry`, old and new."""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

from rnncells.migrate.code.cells import CellClass
from rnncells.migrate.code.kinds import OTHER
from rnncells.migrate.code.names import last_name
from rnncells.migrate.code.own_cells import stays
from rnncells.migrate.code.program import COUNT, PURE, Program

OLD_NAMES = ("rng", "batch_dims", "size", "init_fn")
# Names of instances of cells, which are made elsewhere.
CELL = re.compile(r"(^|_)(cell|rnn|lstm|gru|core)s?$")
# Names of other arguments, where those were a batch and a size.
KEY = re.compile(r"(^|_|prng)(key|rng)s?\d*$", re.IGNORECASE)


@dataclass(frozen=True)
class CarryCall:
    """A call in the old form: on a class, or with three arguments or more.

    Attributes:
      node: the call.
      of_class: the class that it is a call on; None: on an instance.
      arguments: those given, by their old names: expressions.
      is_sure: whether it is known to be a call of a cell.
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
    """Returns what is known of a call in the old form; None of another."""
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
        # Its cells have a method of the same name, with three arguments today.
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


def _may_be_old(program: Program, arguments: dict[str, ast.expr]) -> bool:
    """Says whether arguments may be a batch and a size, not those of another method."""
    batch, size = (arguments.get(name) for name in OLD_NAMES[1:3])
    has_key = any(_is_key(program, node) for node in (batch, size))
    return not has_key and not _is_number(program, batch)


def _is_key(program: Program, node: ast.expr | None) -> bool:
    """Says whether an argument is a key of random numbers, by its name."""
    named = last_name(program.names.value(node))
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    is_jax = (program.names.qualified(node) or "").startswith("jax.random.")
    return is_jax or any(KEY.search(name) for name in (named, last_name(node)))


def _is_number(program: Program, node: ast.expr | None) -> bool:
    """Says whether an argument is one number, by its form, its type or its name."""
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
    """Says whether what has an attribute is no class, whose attributes may be too."""
    node = program.names.value(node)
    if isinstance(node, ast.Call):
        return last_name(node.func) != "type"
    name = last_name(node)
    is_class = name in ("cls", "__class__") or name[:1].isupper()
    return not is_class and program.names.class_named(node) is None


def _is_named_as_a_cell(program: Program, node: ast.expr) -> bool:
    """Says whether an expression is a cell by its name, one that the class holds.

    A name that comes in may be that of a class.
    """
    while isinstance(node, ast.Subscript):
        node = node.value
    if not CELL.search(last_name(node)):
        return False
    if isinstance(node, ast.Attribute):
        return _is_instance(program, node.value)
    found = program.names.only(node)
    # A loop over cells that are held elsewhere.
    return isinstance(getattr(found, "node", None), ast.For | ast.comprehension) and (
        isinstance(found.node.iter, ast.Name | ast.Attribute | ast.Call)
    )

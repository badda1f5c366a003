"""Calls of `initialize_carry`, old and new."""

import ast
import re
from dataclasses import dataclass

from rnncells.migrate.cells import CellClass
from rnncells.migrate.program import Program

OLD_NAMES = ("rng", "batch_dims", "size", "init_fn")
# Names of instances of cells, which are made elsewhere.
CELL = re.compile(r"(^|_)(cell|rnn|lstm|gru|core)s?$")


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
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    of_class = program.cell_class(node.func.value)
    is_old = len(node.args) > 2 or set(OLD_NAMES[1:]) & set(keywords)
    if of_class is None and not (is_old and _may_be_a_cell(program, node.func.value)):
        return None
    if any(isinstance(arg, ast.Starred) for arg in node.args) or None in keywords:
        return CarryCall(node, of_class, {})
    arguments = {**dict(zip(OLD_NAMES, node.args, strict=False)), **keywords}
    is_sure = of_class is not None or _is_a_cell(program, node.func.value)
    return CarryCall(node, of_class, arguments, is_sure)


def _is_a_cell(program: Program, node: ast.expr) -> bool:
    """Says whether an expression is an instance: by how it was made, or by its name."""
    if program.constructor(node) is not None:
        return True
    while isinstance(node, ast.Subscript):
        node = node.value
    name = getattr(node, "id", getattr(node, "attr", ""))
    if not CELL.search(name) or program.is_some_class(node):
        return False
    if isinstance(node, ast.Attribute):
        return True
    # A name in a loop over cells; one that comes in may be a class.
    found = program.names.only(node)
    return isinstance(getattr(found, "node", None), ast.For | ast.comprehension) and (
        isinstance(found.node.iter, ast.Name | ast.Attribute | ast.Call)
    )


def _may_be_a_cell(program: Program, node: ast.expr) -> bool:
    """Says whether an expression can be an instance of a cell of Flax.

    The carries of modules that hold cells have the same name, and their own arguments.
    """
    if isinstance(node, ast.Name) and node.id in ("self", "cls"):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "super":
            return False
    if program.names.qualified(node) is not None:
        # Of another file, or of another library.
        return False
    if isinstance(node, ast.Attribute) and program.is_self(node.value):
        made = [v for v in program.attribute_values(node) if isinstance(v, ast.Call)]
        if made and all(program.cell_class(value.func) is None for value in made):
            return False
    value = program.names.value(node)
    if isinstance(value, ast.Call):
        value = program.names.value(value.func)
        if program.cell_class(value) is not None:
            return True
    if isinstance(value, ast.Name):
        found = program.names.only(value)
        is_class = found is not None and isinstance(found.node, ast.ClassDef)
        return not is_class
    return True

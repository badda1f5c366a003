"""Lists, tuples and dicts of cells, and the expressions that read their elements."""

import ast

from rnncells.migrate.code.bindings import LOOPS
from rnncells.migrate.code.program import Program

CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.DictComp)
CONTAINERS += (ast.BinOp,)  # `[cell] * 2`
# Functions that only read the elements of a container.
READING = ("zip", "enumerate", "reversed", "list", "tuple", "len")


def container(program: Program, cell: ast.Call) -> ast.Name | ast.Attribute | None:
    """Returns the name, or attribute of `self`, of the container a cell is put in."""
    parents, node = program.source.parents, cell
    while True:
        around = parents[node]
        function = getattr(around, "func", None)
        is_copied = isinstance(function, ast.Name) and function.id in ("list", "tuple")
        if not (isinstance(around, CONTAINERS) or is_copied):
            return None if node is cell else program.target(node)
        node = around


def holder(program: Program, node: ast.expr) -> ast.expr | None:
    """Returns the container that an expression is an element of, or None."""
    if isinstance(node, ast.Subscript):
        return node.value
    return getattr(program.names.only(node), "element_of", None)


def only_read(program: Program, use: ast.expr) -> bool:
    """Returns whether a use of a container only reads its elements."""
    parent = program.source.parents[use]
    if isinstance(parent, ast.Call):
        return getattr(parent.func, "id", "") in READING
    if isinstance(parent, LOOPS):
        return parent.iter is use
    return isinstance(parent, ast.Subscript | ast.Attribute) and parent.value is use

"""Lists, tuples and dicts that hold cells, and what is taken out of them."""

import ast

from rnncells.migrate.code.names import last_name
from rnncells.migrate.code.program import Program

DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.DictComp)
# Functions that give out what a container holds, one by one.
GIVE_OUT = ("zip", "enumerate", "reversed", "list", "tuple", "len")


def container(program: Program, cell: ast.Call) -> ast.Name | ast.Attribute | None:
    """Returns the name, or attribute of `self`, of what holds a cell that is made."""
    parents, node = program.source.parents, cell
    while True:
        around = parents[node]
        makes = getattr(around, "func", None)
        is_copied = isinstance(makes, ast.Name) and makes.id in ("list", "tuple")
        if not (isinstance(around, DISPLAYS) or is_copied):
            return None if node is cell else program.target(node)
        node = around


def holder(program: Program, node: ast.expr) -> ast.expr | None:
    """Returns the container that an expression is an element of, if it is one."""
    if isinstance(node, ast.Subscript):
        return node.value
    loop = getattr(program.names.only(node), "node", None)
    if not isinstance(loop, ast.For | ast.comprehension):
        return None
    return _given_out(loop.iter, loop.target, node.id)


def _given_out(given: ast.expr, target: ast.expr, name: str) -> ast.expr | None:
    """Returns the container of which a name in a loop's target gets the elements."""
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        # `cells.values()`, and the second of `cells.items()`.
        given, pair = given.func.value, given.func.attr == "items"
        target = target.elts[1] if pair and len(_parts(target)) == 2 else target
    elif last_name(getattr(given, "func", None)) == "enumerate" and given.args:
        if len(_parts(target)) != 2:
            return None
        return _given_out(given.args[0], target.elts[1], name)
    elif last_name(getattr(given, "func", None)) == "zip":
        parts = zip(given.args, _parts(target), strict=False)
        return next(
            filter(None, (_given_out(of, part, name) for of, part in parts)), None
        )
    return given if getattr(target, "id", None) == name else None


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else []


def gives_out(program: Program, use: ast.expr) -> bool:
    """Says whether a use of a container does no more than take elements out of it."""
    parent = program.source.parents[use]
    if isinstance(parent, ast.Call):
        return getattr(parent.func, "id", "") in GIVE_OUT
    if isinstance(parent, ast.For | ast.comprehension):
        return parent.iter is use
    return isinstance(parent, ast.Subscript | ast.Attribute) and parent.value is use

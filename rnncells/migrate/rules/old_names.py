"""RC05: `ConvLSTM` is renamed where no parameter name depends on it."""

import ast
from collections.abc import Iterator

from rnncells.migrate.code.bindings import FUNCTIONS
from rnncells.migrate.code.cells import PARTIAL, lifting, linen_name
from rnncells.migrate.code.names import Binding
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit
from rnncells.migrate.rules.finding import IN_STRING, Finding

OLD, END = "ConvLSTM", "Cell"
# A cell made inside them may be made while a compact method runs.
LATER = (*FUNCTIONS, ast.GeneratorExp)
WHY = (
    "old checkpoints contain the automatic name of this cell: write "
    '`ConvLSTMCell(..., name="ConvLSTM_0")`, with its number in the checkpoint'
)
WHY_CLASS = (
    "old checkpoints may contain cells named after this class: rename the class, and "
    "pass the old names as `name=`"
)


def conv_lstm(program: Program) -> Iterator[Finding]:
    """RC05: attributes one by one, and imports together with all of their uses."""
    for node in program.source.nodes:
        if program.source.is_skipped(node) if _is_old(program, node) else True:
            continue
        if isinstance(node, ast.alias):
            yield from _imported(program, node)
            continue
        kept = list(_kept(program, node))
        yield from _marks(kept)
        if not kept:
            yield Finding("RC05", node, [_renaming(program, node)])


def _is_old(program: Program, node: ast.AST) -> bool:
    if isinstance(node, ast.alias) and node.name == OLD:
        statement = program.source.parents[node]
        module = getattr(statement, "module", None)
        return not getattr(statement, "level", 0) and _is_flax(f"{module}.{OLD}")
    return (
        isinstance(node, ast.Attribute)
        and node.attr == OLD
        and isinstance(node.ctx, ast.Load)
        and program.linen(node) == OLD
    )


def _is_flax(qualified: str | None) -> bool:
    return linen_name(qualified) == OLD


def _renaming(program: Program, node: ast.expr) -> Edit:
    at = program.source.end(node)
    return Edit(at, at, END)


def _marks(kept: list[ast.AST]) -> Iterator[Finding]:
    for node in kept:
        yield Finding(
            "RC05", node, why=WHY if isinstance(node, ast.Call) else WHY_CLASS
        )


def _imported(program: Program, alias: ast.alias) -> Iterator[Finding]:
    """Yields the rewrite of an import and its uses, or the marks that keep them."""
    statement = program.source.parents[alias]
    name = alias.asname or OLD
    found = program.names.lookup(name, statement)
    uses = program.names.uses(name, found)
    if any(program.source.is_skipped(use) for use in uses):
        return
    if not all(_is_flax(b.imported) or b.is_none for b in found):
        # A fallback for an old version of Flax is not old code.
        if program.source.around(statement, ast.Try) is None:
            why = f"`{name}` is also the name of something else: rename that"
            yield Finding("RC05", alias, why=why)
        return
    if any(program.source.is_in_string(use) for use in uses):
        yield Finding("RC05", alias, why=IN_STRING)
        return
    kept = [node for use in uses for node in _kept(program, use)]
    kept = kept if uses else [alias]
    yield from _marks(kept)
    if kept:
        return
    at = program.source.start(alias) + len(OLD)
    if alias.asname or _needs_name(program, found, uses):
        text = END if alias.asname else f"{END} as {OLD}"
        yield Finding("RC05", alias, [Edit(at, at, text)])
        return
    yield Finding("RC05", alias, [Edit(at, at, END)])
    for use in uses:
        yield Finding("RC05", use, [_renaming(program, use)])


def _needs_name(program: Program, found: list[Binding], uses: list[ast.Name]) -> bool:
    """Returns whether the file must keep the old name."""
    nodes, names = program.source.nodes, program.names
    return (
        len(found) > 1
        or any(f"{OLD}{END}" in scope.names for scope in names.scopes.values())
        or any(
            isinstance(node, ast.Global | ast.Nonlocal) and OLD in node.names
            for node in nodes
        )
        or any(
            isinstance(node, ast.Name) and node.id == OLD and node not in uses
            for node in nodes
        )
        # For example in `__all__`.
        or any(
            isinstance(node, ast.Constant)
            and node.value == OLD
            and not isinstance(program.source.parents[node], ast.Expr)
            for node in nodes
        )
    )


def _kept(program: Program, node: ast.expr) -> Iterator[ast.expr]:
    """Yields the places where a module may get its parameter name from a class."""
    names, parent = program.names, program.source.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        if _names_itself(program, parent):
            yield parent
    elif isinstance(parent, ast.Attribute):
        if parent.attr != "initialize_carry":
            yield node
    elif _makes_class(program, parent, node):
        if not _is_named(program, parent):
            yield from _kept(program, parent)
    elif isinstance(parent, ast.Assign | ast.AnnAssign) and parent.value is node:
        targets = getattr(parent, "targets", None) or [parent.target]
        found = names.only(targets[0]) if len(targets) == 1 else None
        is_field = isinstance(names.scope_node(parent), ast.ClassDef)
        uses = []
        if found is not None and not is_field:
            name = targets[0].id
            uses = names.uses(name, names.lookup(name, targets[0]))
        for use in uses:
            yield from _kept(program, use)
        if not uses:
            yield node
    elif not _is_asked_for(program, node):
        yield node


def _makes_class(program: Program, call: ast.AST, node: ast.expr) -> bool:
    """Returns whether a call is a transformation or a `partial` of a class."""
    if not isinstance(call, ast.Call) or not call.args or call.args[0] is not node:
        return False
    if lifting(program.names, call.func)[0] is not None:
        return True
    return program.names.qualified(call.func) in PARTIAL


def _is_named(program: Program, call: ast.Call) -> bool:
    """Returns whether a call that makes a module passes `name` or `parent=None`."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    name, parent = given.get("name"), given.get("parent")
    if isinstance(parent, ast.Constant) and parent.value is None:
        return True
    found = program.names.only(name)
    return not (
        name is None
        or (isinstance(name, ast.Constant) and name.value is None)
        or (found is not None and found.is_optional)
    )


def _names_itself(program: Program, call: ast.Call) -> bool:
    """Returns whether a module may be named after its class.

    In `setup` it is named after its attribute, and outside of modules after none.
    """
    function = program.source.around(call, *LATER)
    if function is None or _is_named(program, call):
        return False
    is_method = isinstance(program.source.parents[function], ast.ClassDef)
    return not (is_method and getattr(function, "name", "") == "setup")


def _is_asked_for(program: Program, node: ast.expr) -> bool:
    """Returns whether a class is only a base, an annotation or used in `isinstance`."""
    parents = program.source.parents
    parent = parents[node]
    while isinstance(parent, ast.Tuple | ast.Subscript | ast.BinOp):
        node, parent = parent, parents[parent]
    if isinstance(parent, ast.ClassDef):
        return node in parent.bases
    if isinstance(parent, ast.Call):
        return getattr(parent.func, "id", "") in ("isinstance", "issubclass")
    annotations = (getattr(parent, name, None) for name in ("annotation", "returns"))
    return node in annotations

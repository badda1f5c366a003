"""Where recurrent names are imported from."""

import ast
from collections.abc import Iterator

from rnncells.migrate.program import Program
from rnncells.migrate.rules import Finding
from rnncells.migrate.source import Edit

# What is here under the names that Flax has.
MOVED = {
    *("LSTMCell", "OptimizedLSTMCell", "GRUCell", "ConvLSTMCell", "ConvLSTM"),
    *("MGUCell", "SimpleCell", "RNN", "Bidirectional"),
}
SHIM = "rnncells.legacy"
SHIMS = (SHIM, f"{SHIM}.recurrent")


def from_shim(program: Program) -> Iterator[Finding]:
    """RC09: names of the shim, from where they are today."""
    yield from _shim_as_flax(program)
    for node in program.source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in SHIMS:
            at = program.source.start(node) + len("from ")
            yield Finding("RC09", node, [Edit(at, at + len(SHIM), "flax.linen")])


def _shim_as_flax(program: Program) -> Iterator[Finding]:
    for node in program.source.nodes:
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name in SHIMS and alias.asname:
                at = program.source.start(alias)
                edit = Edit(at, at + len(SHIM), "flax.linen")
                yield Finding("RC09", node, [edit])


def to_rnncells(program: Program) -> Iterator[Finding]:
    """RC09: recurrent names of Flax, from this library."""
    source, uses = program.source, []
    yield from _shim_as_flax(program)
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in (
            "flax.linen",
            "flax.linen.recurrent",
            *SHIMS,
        ):
            yield from _split(program, node)
        elif isinstance(node, ast.Attribute) and node.attr in MOVED:
            qualified = program.names.qualified(node) or ""
            if qualified.startswith(("flax.linen.", f"{SHIM}.")):
                uses.append(node)
    if not uses:
        return
    for node in uses:
        start = source.start(node)
        end = source.end(node.value)
        yield Finding("RC09", node, [Edit(start, end, "rnncells")])
    if not _imports(program, "rnncells"):
        yield Finding("RC09", source.tree.body[0], [_new_import(program)])


def _imports(program: Program, name: str) -> bool:
    found = program.names.scopes[program.source.tree].names.get(name, [])
    return any(binding.imported == name for binding in found)


def _new_import(program: Program) -> Edit:
    """Returns the edit that imports rnncells behind the other imports of the file."""
    source = program.source
    imports = [
        s for s in source.tree.body if isinstance(s, ast.Import | ast.ImportFrom)
    ]
    last = imports[-1]
    line = source.line(last.lineno)
    newline = "\r\n" if line.endswith("\r\n") else "\n"
    at = source.end(last)
    return Edit(at, at, f"{newline}import rnncells")


def _split(program: Program, node: ast.ImportFrom) -> Iterator[Finding]:
    """Yields the edit of an import of names, some of which move."""
    source = program.source
    moved = [alias for alias in node.names if alias.name in MOVED]
    if not moved:
        return
    start, end = source.start(node), source.end(node)
    if any(t[2].startswith("#") for t in source.tokens_between(start, end)):
        yield Finding("RC09", node, why="comments stand between the names")
        return
    stay = [alias for alias in node.names if alias not in moved]
    if not stay:
        at = start + len("from ")
        yield Finding("RC09", node, [Edit(at, at + len(node.module), "rnncells")])
        return
    indent = " " * node.col_offset
    names = [
        ", ".join(source.text(alias) for alias in group) for group in (stay, moved)
    ]
    module = node.module.replace(SHIM, "flax.linen")
    text = f"from {module} import {names[0]}\n{indent}from rnncells import {names[1]}"
    yield Finding("RC09", node, [Edit(start, end, text)])

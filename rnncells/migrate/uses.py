"""Where other files use a cell that RC06 rewrites."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from rnncells.migrate.code.bindings import stored
from rnncells.migrate.code.names import Names, last_name
from rnncells.migrate.code.source import Source
from rnncells.migrate.file_results import FileResult
from rnncells.migrate.migration import Note

WHY = (
    "`{0}`, of {1}, has `features` now, and its carry is made by an instance: see "
    "RC01, RC02"
)
LIBRARIES = ("flax", "rnncells")


def with_uses(looked: list[FileResult], is_written: bool) -> list[FileResult]:
    """Returns the files with a note for each line that uses a cell of another.

    Args:
      looked: all files that were looked at.
      is_written: whether they are what they become, and lines are counted in that.
    """
    homes: dict[str, list[Path]] = {}
    for one in looked:
        for name in sorted(set(one.migration.cells)) if one.migration else ():
            homes.setdefault(name, []).append(one.path)
    return [_with_uses(one, homes, is_written) for one in looked]


def _with_uses(
    one: FileResult, homes: dict[str, list[Path]], is_written: bool
) -> FileResult:
    if one.migration is None:
        return one
    data = one.migration.data if is_written else one.code
    own = one.migration.cells
    words = [name for name in homes if name not in own and name.encode() in data]
    if not words:
        return one
    try:
        found = sorted(set(uses(data, words)))
    except Exception as error:
        # One file must not keep others from being looked at.
        names = ", ".join(f"`{name}`" for name in words)
        why = f"whether it uses {names} is not known, {type(error).__name__}: {error}"
        return one._replace(error=why)
    notes = [*one.migration.notes]
    for line, name in found:
        why = WHY.format(name, ", ".join(map(str, homes[name])))
        notes.append(Note(line, "RC06", why, line))
    notes.sort(key=lambda note: note.line_after if is_written else note.line)
    return one._replace(migration=replace(one.migration, notes=tuple(notes)))


def uses(data: bytes, words: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file that use something of another, and its name there.

    By whatever name it is imported; not where it is imported or listed in `__all__`.

    Raises:
      SyntaxError: it is not Python.
    """
    source = Source(data)
    names = Names(source)
    for node in source.nodes:
        name = _name(names, node)
        if name in words and not source.is_skipped(node):
            if "__all__" not in stored(source.statement(node)):
                yield node.lineno, name


def _name(names: Names, node: ast.AST) -> str | None:
    """Returns the name of what a node stands for, if another file may have it."""
    if isinstance(node, ast.Constant):
        # As `getattr` takes it.
        return node.value if isinstance(node.value, str) else None
    qualified = names.qualified(node)
    if qualified is not None:
        package, _, _ = qualified.partition(".")
        return None if package in LIBRARIES else qualified.rpartition(".")[2]
    found = names.lookup(node.id, node) if isinstance(node, ast.Name) else ()
    is_own = found and not any(binding.imported for binding in found)
    return None if is_own else last_name(node)

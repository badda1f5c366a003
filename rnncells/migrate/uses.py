"""Notes on lines that use a cell class of another file which RC06 rewrites."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rnncells.migrate.code.names import Names
from rnncells.migrate.code.source import Source
from rnncells.migrate.file_results import FileResult
from rnncells.migrate.migration import Note

WHY = "`{0}` of {1} now has `features`, and an instance makes its carry: see RC01, RC02"
STAR = re.compile(rb"\bimport\s*\*")
# A class, by a file that defines or imports it and its name there.
Key = tuple[Path, str]


def with_uses(results: list[FileResult], is_written: bool) -> list[FileResult]:
    """Returns the results with a note for each line that uses a class of another file.

    Args:
      results: of all files of the run.
      is_written: whether the files were rewritten, so that lines are counted in what
        they became.
    """
    # The class that each key stands for, by its own file and name.
    known: dict[Key, Key] = {
        (result.path, name): (result.path, name)
        for result in results
        if result.migration is not None
        for name in result.migration.cells
    }
    importers = {
        result.path: Importer(result, is_written)
        for result in results
        if result.migration is not None
    }
    size = 0
    while size < len(known):
        size = len(known)
        for importer in importers.values():
            known = dict(importer.imports(known)) | known
    return [
        importers[result.path].noted(known) if result.path in importers else result
        for result in results
    ]


class Importer:
    """A file that may use classes of others; it is parsed once it names one of them.

    Args:
      result: what the file becomes.
      is_written: whether the file has been rewritten.
    """

    def __init__(self, result: FileResult, is_written: bool):
        self.result, self.is_written = result, is_written
        self.path = result.path
        self.data = result.migration.data if is_written else result.code
        self.names: Names | None = None
        self.error = ""

    def noted(self, known: dict[Key, Key]) -> FileResult:
        """Returns the result with a note for each use of a class of another file."""
        found = sorted(set(self.uses(known)))
        if self.error:
            return self.result._replace(error=self.error)
        notes = [Note(n, "RC06", WHY.format(name, at), n) for n, (at, name) in found]
        notes += self.result.migration.notes
        notes.sort(key=lambda note: note.line_after if self.is_written else note.line)
        migration = replace(self.result.migration, notes=tuple(notes))
        return self.result._replace(migration=migration)

    def _is_parsed(self, known: dict[Key, Key]) -> bool:
        """Parses the file if it may use known classes; returns whether that worked."""
        words = [
            n for path, n in known if path != self.path and n.encode() in self.data
        ]
        may_use = words or (known and STAR.search(self.data))
        if self.names is None and not self.error and may_use:
            try:
                self.names = Names(Source(self.data))
            except Exception as error:
                # An error in one file must not stop the others.
                names = ", ".join(f"`{name}`" for name in dict.fromkeys(words))
                self.error = f"whether it uses {names} is not known, "
                self.error += f"{type(error).__name__}: {error}"
        return self.names is not None

    def imports(self, known: dict[Key, Key]) -> Iterator[tuple[Key, Key]]:
        """Yields the classes that other files can import from this one."""
        if not self._is_parsed(known):
            return
        names = self.names
        for name, found in names.scopes[names.source.tree].names.items():
            for binding in found:
                meaning = self._class(known, binding.imported or "")
                if meaning:
                    yield (self.path, name), meaning
        for module in self._stars():
            for (path, name), meaning in known.items():
                if is_module(path, module, self.path):
                    yield (self.path, name), meaning

    def uses(self, known: dict[Key, Key]) -> Iterator[tuple[int, Key]]:
        """Yields lines that use a class of another file, not those that import it."""
        nodes = self.names.source.nodes if self._is_parsed(known) else ()
        for node in nodes:
            found = {self._class(known, full) for full in self._meanings(node)} - {None}
            if found and not self.names.source.is_skipped(node):
                yield from ((node.lineno, meaning) for meaning in found)

    def _stars(self) -> list[str]:
        """Returns the modules from which the file imports all names."""
        return [
            "." * node.level + (node.module or "")
            for node in self.names.source.nodes
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]

    def _meanings(self, node: ast.AST) -> set[str]:
        """Returns the full names that an expression may have by the file's imports."""
        if isinstance(node, ast.Attribute):
            return {f"{full}.{node.attr}" for full in self._meanings(node.value)}
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            named = [getattr(argument, "value", "") for argument in node.args[1:2]]
            of = self._meanings(node.args[0]) if named else ()
            return {f"{full}.{named[0]}" for full in of}
        if not isinstance(node, ast.Name):
            return set()
        found = self.names.lookup(node.id, node)
        if not found:
            return {f"{module}.{node.id}" for module in self._stars()}
        return {binding.imported for binding in found if binding.imported}

    def _class(self, known: dict[Key, Key], full: str) -> Key | None:
        """Returns the class that a full name stands for in this file, or None."""
        module, name = re.fullmatch(r"(.*?\.*)([^.]*)", full).groups()
        for (path, other), meaning in known.items():
            if other == name and path != self.path:
                if is_module(path, module, self.path):
                    return meaning
        return None


def is_module(path: Path, module: str, importer: Path) -> bool:
    """Returns whether a file may be the module that another file imports.

    Args:
      path: the file.
      module: the name in the import, with its leading dots.
      importer: the file that imports it.
    """
    path = path.absolute()
    own = path.parent if path.stem == "__init__" else path.with_suffix("")
    parts = [part for part in module.split(".") if part]
    level = len(module) - len(module.lstrip("."))
    if not level:
        return bool(parts) and own.parts[-len(parts) :] == tuple(parts)
    folders = [*importer.absolute().parents][level - 1 :]
    return bool(folders) and folders[0].joinpath(*parts) == own

"""The result of rewriting each file; several files are rewritten in parallel."""

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rnncells.migrate import notebooks
from rnncells.migrate.code.names import BEFORE_LINEN
from rnncells.migrate.code.source import MARKED
from rnncells.migrate.migration import LIBRARY, Migration, is_about_cells, migrate
from rnncells.migrate.notebooks import Notebook, is_notebook

STDIN = Path("-")
# Fewer files are done sooner than processes start.
FEW, AT_ONCE = 64, 16
FLAX_NN = re.compile(
    rb"\bflax(\.deprecated)?\.nn\b"
    rb"|\bfrom\s+flax(\.deprecated)?\s+import\b[^#]*?\bnn\b"
)
OLDER = "`flax.nn`, which is older than `flax.linen`, is not supported: port it by hand"


class FileResult(NamedTuple):
    """What one file becomes.

    Attributes:
      path: the file; `-` is standard input.
      before: its bytes.
      after: its new bytes; equal to `before` if nothing changes.
      code: its Python code: `before`, or the code cells of a notebook as one module.
      migration: what `code` becomes; None if the file cannot be read.
      error: why it cannot be read, or what in it is not supported.
    """

    path: Path
    before: bytes
    after: bytes
    code: bytes
    migration: Migration | None
    error: str = ""

    @property
    def is_changed(self) -> bool:
        return self.after != self.before

    @property
    def has_marks(self) -> bool:
        """Whether lines are marked for a person to look at, in the new file."""
        return self.migration is not None and bool(MARKED.search(self.migration.data))

    def marked_lines(self, is_after: bool) -> list[int]:
        """Returns the lines of marks in the new code or the old."""
        code = self.migration.data if is_after else self.code
        return [code.count(b"\n", 0, m.end()) + 1 for m in MARKED.finditer(code)]

    def place(self, line: int, is_after: bool) -> str:
        """Returns the path and the place of a line, of the new code or the old."""
        if not _is_notebook(self.path, self.before):
            return f"{self.path}:{line}"
        code = self.migration.data if is_after else self.code
        return f"{self.path}: {notebooks.place(code, line)}"


def migrate_files(
    paths: list[Path], to: str, rules: frozenset[str] | None, jobs: int
) -> Iterator[FileResult]:
    """Yields the results of all files, in their order.

    Args:
      paths: the files.
      to: as `rules`, see `migrate`.
      jobs: number of processes; few files are done by this process alone.
    """
    one = partial(migrate_file, to=to, rules=rules)
    if jobs == 1 or len(paths) < FEW:
        yield from map(one, paths)
        return
    # A fork would not be safe where the caller runs threads.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, ignore_warnings) as pool:
        yield from pool.map(one, paths, chunksize=AT_ONCE)


def ignore_warnings() -> None:
    """Hides Python's warnings about the user's code, such as invalid escapes."""
    warnings.simplefilter("ignore")


def migrate_file(path: Path, to: str, rules: frozenset[str] | None) -> FileResult:
    """Returns what a file becomes; its code is never run, and nothing is written."""
    read = sys.stdin.buffer.read if path == STDIN else path.read_bytes
    try:
        return _migrated(path, read(), to, rules)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return FileResult(path, b"", b"", b"", None, f"not Python: {error.msg}{line}")
    except Exception as error:
        # One file must not stop the others.
        return FileResult(path, b"", b"", b"", None, f"{type(error).__name__}: {error}")


def _migrated(
    path: Path, data: bytes, to: str, rules: frozenset[str] | None
) -> FileResult:
    if not _is_notebook(path, data):
        older, migration = _older(data), migrate(data, to, rules)
        return FileResult(path, data, migration.data, data, migration, older)
    unchanged = FileResult(path, data, data, b"", Migration(b""))
    if not LIBRARY.search(data):
        return unchanged
    notebook = Notebook(data)
    text = "\n".join(notebook.cells).encode()
    if not (is_about_cells(text) or FLAX_NN.search(text)):
        return unchanged
    migration = migrate(notebook.code, to, rules)
    after = notebook.with_code(migration.data)
    error = "; ".join(filter(None, [_older(notebook.code), *notebook.errors]))
    return FileResult(path, data, after, notebook.code, migration, error)


def _is_notebook(path: Path, data: bytes) -> bool:
    """Returns whether a file is a notebook; standard input has no name that says so."""
    return is_notebook(data) if path == STDIN else path.suffix == ".ipynb"


def _older(code: bytes) -> str:
    return OLDER if uses_flax_nn(code) else ""


def uses_flax_nn(code: bytes) -> bool:
    """Returns whether code uses `flax.nn`, the predecessor of `flax.linen`.

    Raises:
      SyntaxError: the code may use `flax.nn`, but is not Python.
    """
    if not FLAX_NN.search(code):
        return False
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        if any(f"{name}.".startswith(BEFORE_LINEN) for name in names):
            return True
    return False

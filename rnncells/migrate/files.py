"""Which files are looked at, and how they are written."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rnncells.migrate.migration import Migration, migrate

# Folders that are not the user's code.
NOT_LOOKED_INTO = {"__pycache__", "node_modules", "site-packages", "venv", "build"}
# So few files are done sooner than processes start.
FEW, AT_ONCE = 64, 16


class Looked(NamedTuple):
    """A file that was looked at.

    Attributes:
      path: of the file.
      before: its bytes.
      migration: what it becomes; None if it cannot be read.
      error: why it cannot.
    """

    path: Path
    before: bytes
    migration: Migration | None
    error: str = ""


def python_files(paths: list[Path]) -> list[Path]:
    """Returns the files given, and those named `*.py` in folders, each once, sorted.

    Raises:
      FileNotFoundError: a path that is not there.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found |= dict.fromkeys(sorted(_within(path)))
        elif path.is_file():
            found[path] = None
        else:
            raise FileNotFoundError(f"no such file or folder: {path}")
    return list(found)


def _within(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in NOT_LOOKED_INTO and not name.startswith(".")
        ]
        yield from (Path(here, name) for name in names if name.endswith(".py"))


def look(path: Path, to: str, rules: frozenset[str] | None) -> Looked:
    """Looks at one file; nothing of it is run."""
    before = b""
    try:
        before = path.read_bytes()
        return Looked(path, before, migrate(before, to, rules))
    except SyntaxError as error:
        return Looked(
            path, before, None, f"not Python: {error.msg}, line {error.lineno}"
        )
    except Exception as error:
        # One file must not keep others from being looked at.
        return Looked(path, before, None, f"{type(error).__name__}: {error}")


def look_at_all(
    paths: list[Path], to: str, rules: frozenset[str] | None, jobs: int
) -> Iterator[Looked]:
    """Yields all files looked at, in their order, several at a time."""
    one = partial(look, to=to, rules=rules)
    if jobs == 1 or len(paths) < FEW:
        yield from map(one, paths)
        return
    # JAX, which rnncells imports, has threads: they do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, paths, chunksize=AT_ONCE)


def write(looked: Looked, backup: bool) -> None:
    """Writes what a file becomes, in one step, with its permissions as they were."""
    path = looked.path.resolve()
    if backup:
        path.with_name(path.name + ".orig").write_bytes(looked.before)
    with replacing(path) as beside:
        beside.write_bytes(looked.migration.data)
        beside.chmod(path.stat().st_mode)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path beside a file, to be written and put in its place in one step."""
    beside = path.with_name(f".{path.name}.rnncells")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def dirty_trees(paths: list[Path]) -> list[Path]:
    """Returns the git trees around paths that have changes which are not committed."""
    tops = {top for path in paths for top in _git(path, "rev-parse", "--show-toplevel")}
    return [
        Path(top) for top in sorted(tops) if _git(Path(top), "status", "--porcelain")
    ]


def _git(path: Path, *words: str) -> list[str]:
    folder = path if path.is_dir() else path.parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True
        )
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []

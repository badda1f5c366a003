"""Finds the files to rewrite, and writes them."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

# Folders with code that is not the user's.
SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build"}
SUFFIXES = {".py", ".ipynb"}


def source_files(paths: list[Path]) -> list[Path]:
    """Returns the given files, and the Python files and notebooks in folders, once."""
    files: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no such file or folder: {path}")
        for file in sorted(_within(path)) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _within(folder: Path) -> Iterator[Path]:
    """Yields the files in a folder that are not hidden."""
    for here, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [n for n in folders if n not in SKIPPED and n[0] != "."]
        for path in (Path(here, name) for name in names if name[0] != "."):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def _raise(error: OSError) -> None:
    raise error


def write(path: Path, before: bytes, after: bytes, backup: bool) -> None:
    """Replaces the contents of a file in one step; its permissions stay."""
    # A backup replaces no file: it is `FILE.orig`, or `FILE.orig1` and so on.
    path = path.resolve()
    for number in itertools.count() if backup else ():
        try:
            with path.with_name(f"{path.name}.orig{number or ''}").open("xb") as file:
                file.write(before)
            break
        except FileExistsError:
            continue
    beside = path.with_name(f".{path.name}.rnncells")
    try:
        beside.write_bytes(after)
        beside.chmod(path.stat().st_mode)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)

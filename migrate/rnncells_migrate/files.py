"""Finds the files to rewrite, and writes them."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Folders with code that is not the user's.
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv", "build"}
SUFFIXES = {".py", ".ipynb"}


def source_files(paths: list[Path]) -> list[Path]:
    """Returns the given files, and the Python files and notebooks in folders.

    Each file is listed once, also if links lead to it.

    Raises:
      FileNotFoundError: a path does not exist.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no such file or folder: {path}")
        for file in sorted(_within(path)) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _within(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED_FOLDERS and not name.startswith(".")
        ]
        for name in names:
            path = Path(here, name)
            if path.suffix in SUFFIXES and not name.startswith(".") and path.is_file():
                yield path


def _raise(error: OSError) -> None:
    raise error


def write(path: Path, before: bytes, after: bytes, backup: bool) -> None:
    """Replaces the contents of a file in one step; its permissions stay.

    Args:
      path: the file.
      before: its present contents.
      after: its new contents.
      backup: whether `before` is kept as `FILE.orig`, or `FILE.orig1` and so on if
        other contents are there.
    """
    path = path.resolve()
    if backup:
        _back_up(path, before)
    beside = path.with_name(f".{path.name}.rnncells")
    try:
        beside.write_bytes(after)
        beside.chmod(path.stat().st_mode)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _back_up(path: Path, data: bytes) -> None:
    """Writes the contents of a file beside it, without replacing another backup."""
    for number in itertools.count():
        beside = path.with_name(f"{path.name}.orig{number or ''}")
        try:
            with beside.open("xb") as file:
                file.write(data)
            return
        except FileExistsError:
            if beside.is_file() and beside.read_bytes() == data:
                return


def not_in_git(paths: list[Path]) -> list[Path]:
    """Returns the files in git repositories whose present contents git does not have.

    Those files have uncommitted changes, or are untracked or ignored.

    Raises:
      ValueError: git fails.
    """
    # Writing a link replaces the file that it points to.
    real = {path: path.resolve() for path in paths}
    ordered = sorted(paths, key=lambda path: real[path])
    unsaved = []
    for folder, group in itertools.groupby(ordered, key=lambda path: real[path].parent):
        members = list(group)
        names = _git_status(folder, [real[path].name for path in members])
        unsaved += [path for path in members if real[path].name in names]
    return unsaved


def _git_status(folder: Path, names: list[str]) -> set[str]:
    """Returns the names of those files in a folder that are not clean for git."""
    words = ["git", "--literal-pathspecs", "-C", str(folder), "status", "--porcelain"]
    words += ["-z", "--no-renames", "--untracked-files=all", "--ignored", "--", *names]
    # In a hook, git would answer for the hook's repository, not for the files' own.
    env = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=env | {"LC_ALL": "C"}
        )
    except FileNotFoundError:
        return set()
    if done.returncode and "not a git repository" not in done.stderr:
        raise ValueError(f"git failed in {folder}: {done.stderr.strip()}")
    # Each entry is two letters, a space, and a path from the top of the repository.
    return {entry[3:].rpartition("/")[2] for entry in done.stdout.split("\0") if entry}

"""Finds the files to rewrite, and writes them."""

import contextlib
import itertools
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

# Folders with code that is not the user's.
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv", "build"}
SUFFIXES = (".py", ".ipynb")
# Number of files that one git command is asked about.
AT_ONCE = 16
# What git sets for its hooks.
HOOK_VARIABLES = {"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"}


def source_files(paths: list[Path], onerror: Callable[[OSError], object]) -> list[Path]:
    """Returns the given files, and the Python files and notebooks in folders.

    Each file is listed once, under its own name rather than the name of a link to it.
    The files of a folder are sorted.

    Args:
      paths: files and folders.
      onerror: called with the error of each folder that cannot be read.

    Raises:
      FileNotFoundError: a path does not exist.
    """
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            several = sorted(_within(path, onerror), key=lambda p: (p.is_symlink(), p))
        elif path.is_file():
            several = [path]
        else:
            raise FileNotFoundError(f"no such file or folder: {path}")
        for one in several:
            found.setdefault(os.path.realpath(one), one)
    return list(found.values())


def _within(folder: Path, onerror: Callable[[OSError], object]) -> Iterator[Path]:
    for here, folders, names in os.walk(folder, onerror=onerror):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED_FOLDERS and not name.startswith(".")
        ]
        for name in names:
            path = Path(here, name)
            if path.suffix in SUFFIXES and not name.startswith(".") and _exists(path):
                yield path


def _exists(path: Path) -> bool:
    """Returns whether a name in a folder is a file, not a broken link."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        # The error is reported when the file is read.
        return True


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
    with replacing(path) as beside:
        beside.write_bytes(after)
        beside.chmod(path.stat().st_mode)


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


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside a file, which it replaces at the end."""
    beside = path.with_name(f".{path.name}.rnncells")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def not_in_git(paths: list[Path]) -> list[Path]:
    """Returns the files in git repositories whose present contents git does not have.

    Those files have uncommitted changes, or are untracked or ignored.

    Raises:
      ValueError: git fails.
    """
    found = []
    # Writing a link replaces the file that it points to.
    real = {path: path.resolve() for path in paths}
    in_folders = sorted(paths, key=lambda path: real[path])
    for folder, several in groupby(in_folders, key=lambda path: real[path].parent):
        several = list(several)
        for start in range(0, len(several), AT_ONCE):
            some = several[start : start + AT_ONCE]
            names = _git_status(folder, [real[path].name for path in some])
            found += [path for path in some if real[path].name in names]
    return found


def _git_status(folder: Path, names: list[str]) -> set[str]:
    """Returns the names of those files in a folder that are not clean for git."""
    words = ["git", "--literal-pathspecs", "-C", str(folder), "status"]
    words += ["--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored"]
    # In a hook, git would answer for the hook's repository, not for the files' own.
    env = {k: v for k, v in os.environ.items() if k not in HOOK_VARIABLES}
    try:
        done = subprocess.run(
            [*words, "--", *names],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env=env | {"LC_ALL": "C"},
        )
    except OSError:
        return set()
    if done.returncode and "not a git repository" not in done.stderr:
        raise ValueError(f"git failed in {folder}: {done.stderr.strip()}")
    # Each entry is two letters, a space, and a path from the top of the repository.
    return {entry[3:].rpartition("/")[2] for entry in done.stdout.split("\0") if entry}

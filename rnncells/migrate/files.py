"""Which files are looked at, and how they are written."""

import ast
import contextlib
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rnncells.migrate.migration import Migration, migrate

# Folders that are not the user's code.
NOT_LOOKED_INTO = {"__pycache__", "node_modules", "site-packages", "venv", "build"}
# So few files are done sooner than processes start.
FEW, AT_ONCE = 64, 16
OF_HOOKS = {"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"}
FLAX_NN = re.compile(rb"\bflax\.nn\b|\bfrom\s+flax\s+import\b[^#]*?\bnn\b")
OLDER = "`flax.nn`, which is older than `flax.linen`, is not covered: port it by hand"
NOTEBOOK = (
    "a notebook: run `jupytext --to py:percent {0}`, `rnncells migrate {1} --write "
    "--allow-dirty` and `jupytext --update --to ipynb {1}`; or, for the code alone, "
    "`jupyter nbconvert --to script {0}`"
)


class Looked(NamedTuple):
    """A file that was looked at.

    Attributes:
      path: of the file.
      before: its bytes.
      migration: what it becomes; None if it cannot be read.
      error: why it cannot, or what is not covered.
    """

    path: Path
    before: bytes
    migration: Migration | None
    error: str = ""

    @property
    def is_changed(self) -> bool:
        return self.migration is not None and self.migration.data != self.before


def python_files(paths: list[Path], onerror: Callable[[OSError], object]) -> list[Path]:
    """Returns the files given, and those named `*.py` in folders, each once.

    Those in a folder are sorted, links behind others: a file goes by its own name.

    Args:
      paths: files and folders.
      onerror: is called with the error of each folder that cannot be read.

    Raises:
      FileNotFoundError: a path that is not there.
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
            if name not in NOT_LOOKED_INTO and not name.startswith(".")
        ]
        for name in names:
            path = Path(here, name)
            if name.endswith(".py") and not name.startswith(".") and _is_there(path):
                yield path


def _is_there(path: Path) -> bool:
    """Says whether a name in a folder is a file's, not a link's to nothing."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        # Why it cannot be read is said when it is looked at.
        return True


def look(path: Path, to: str, rules: frozenset[str] | None) -> Looked:
    """Looks at one file; nothing of it is run."""
    if path.suffix == ".ipynb":
        return Looked(path, b"", None, NOTEBOOK.format(path, path.with_suffix(".py")))
    before = b""
    try:
        before = path.read_bytes()
        older = OLDER if uses_flax_nn(before) else ""
        return Looked(path, before, migrate(before, to, rules), older)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return Looked(path, before, None, f"not Python: {error.msg}{line}")
    except Exception as error:
        # One file must not keep others from being looked at.
        return Looked(path, before, None, f"{type(error).__name__}: {error}")


def uses_flax_nn(data: bytes) -> bool:
    """Says whether a file is for `flax.nn`, which was there before `flax.linen`.

    Raises:
      SyntaxError: it may be, and is not Python.
    """
    if not FLAX_NN.search(data):
        return False
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        if any(f"{name}.".startswith("flax.nn.") for name in names):
            return True
    return False


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


def not_in_git(paths: list[Path]) -> list[Path]:
    """Returns the files whose contents git could not bring back, within its trees.

    Those are changed and not committed, or not tracked, ignored ones too. Files outside
    of any git tree are not among them.

    Raises:
      ValueError: git does not answer.
    """
    found = []
    # Links are followed when they are written.
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
    """Returns the names of files in a folder that git lists as anything but clean."""
    words = ["git", "--literal-pathspecs", "-C", str(folder), "status"]
    words += ["--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored"]
    # A hook's own tree is not asked for, but that around the files.
    env = {k: v for k, v in os.environ.items() if k not in OF_HOOKS} | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            [*words, "--", *names],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env=env,
        )
    except OSError:
        return set()
    if done.returncode and "not a git repository" not in done.stderr:
        raise ValueError(f"git says of {folder}: {done.stderr.strip()}")
    # Each is two letters, a space, and a path from the top of the tree.
    return {entry[3:].rpartition("/")[2] for entry in done.stdout.split("\0") if entry}

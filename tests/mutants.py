"""Measures the tests: breaks the library in many ways, one at a time, and runs them.

    python -m tests.mutants --jobs 2
    python -m tests.mutants --only gru      # some mutants
    python -m tests.mutants --exhaustive    # every test, however slow

`mutants.toml` holds the mutants, and the tests of each file of the library. A mutant is
caught if one of these tests fails that passes in the library as it is. Results are kept
in a file, so that an interrupted run continues.
"""

import argparse
import ast
import collections
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# More than the tests of any file take: a mutant may make a loop without an end.
SECONDS = 1800
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=no", "-rfE")
PYTEST += ("-p", "no:cacheprovider")
# By pytest's exit status.
OUTCOMES = {0: "survived", 1: "caught", 2: "caught at import"}


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    kind: str
    at: str  # `file.py:Class.function`; a file alone for what is outside of functions
    old: str  # text that stands once there
    new: str
    fault: str  # what is wrong with the new text
    reason: str = ""  # why the tests do not find it

    @property
    def key(self) -> str:
        return f"{self.at}: {self.fault}"

    @property
    def file(self) -> str:
        return self.at.partition(":")[0]

    def applied(self, source: str) -> str:
        """Returns the text of the file with the fault.

        Raises:
          ValueError: the old text does not stand once in the function.
          SyntaxError: the new text makes no Python.
        """
        lines = source.splitlines(keepends=True)
        first, last = 0, len(lines)
        if function := self.at.partition(":")[2]:
            first, last = _lines_of(ast.parse(source), function)
        before, text, after = lines[:first], "".join(lines[first:last]), lines[last:]
        if text.count(self.old) != 1:
            raise ValueError(f"`old` must stand once in {self.at}, got {self.old!r}.")
        broken = "".join([*before, text.replace(self.old, self.new), *after])
        compile(broken, self.file, "exec")
        return broken


def _lines_of(tree: ast.AST, name: str) -> tuple[int, int]:
    for part in name.split("."):
        inside = [node for node in ast.walk(tree) if node is not tree]
        defined = [n for n in inside if isinstance(n, ast.ClassDef | ast.FunctionDef)]
        found = [node for node in defined if node.name == part]
        if len(found) != 1:
            raise ValueError(
                f"`at` must name one function, got {len(found)} of {name}."
            )
        (tree,) = found
    return tree.lineno - 1, tree.end_lineno


def read_table() -> tuple[list[Mutant], dict[str, list[str]]]:
    """Returns the mutants, and the tests of each file of the library."""
    table = tomllib.loads((TESTS / "mutants.toml").read_text())
    mutants = [Mutant(**fields) for fields in table["mutant"]]
    if len({mutant.key for mutant in mutants}) < len(mutants):
        raise ValueError("mutants.toml must have each mutant once.")
    for mutant in mutants:
        mutant.applied((ROOT / mutant.file).read_text())
    return mutants, table["tests"]


def copy_tree(to: Path) -> Path:
    """Copies the files that git tracks, and makes sure that they are imported there."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in names.split("\0")[:-1]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    code = "import rnncells, experiments as e; print(rnncells.__file__, e.__file__)"
    command = [sys.executable, "-c", code]
    files = subprocess.check_output(command, cwd=to, env=_environment(to), text=True)
    print(f"imported: {files}", end="", flush=True)
    if not all(Path(file).is_relative_to(to) for file in files.split()):
        raise RuntimeError(f"the library imported must be that in {to}, got {files}.")
    return to


def _environment(tree: Path) -> dict[str, str]:
    # Python would not see that a file has changed within one second.
    own = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **own}


def run_tests(tree: Path, tests: list[str], *options: str) -> dict:
    """Returns the outcome of a run of pytest, and the first test that failed."""
    start, command = time.monotonic(), [*PYTEST, *options, *tests]
    given = {"cwd": tree, "env": _environment(tree), "timeout": SECONDS, "text": True}
    try:
        ran = subprocess.run(command, **given, stdout=subprocess.PIPE)
        outcome = OUTCOMES.get(ran.returncode, f"pytest's status {ran.returncode}")
        failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", ran.stdout, re.M)
    except subprocess.TimeoutExpired:
        outcome, failed = "timed out", []
    by = failed[0] if failed else ""
    return {"outcome": outcome, "by": by, "seconds": round(time.monotonic() - start)}


def read_results(path: Path) -> dict[str, dict]:
    """Returns the outcome of each mutant, of which a file has a line of JSON."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["mutant"]: result for result in map(json.loads, lines)}


def run_mutants(mutants, tests, path: Path, jobs: int, *options: str) -> dict:
    """Runs the mutants without results, then the tests that caught in the whole.

    Returns the outcome of each.
    """
    results = read_results(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        trees = queue.SimpleQueue()
        for k in range(jobs):
            trees.put(copy_tree(Path(folder, str(k)).resolve()))

        def run(mutant):
            tree = trees.get()
            source = (tree / mutant.file).read_text()
            (tree / mutant.file).write_text(mutant.applied(source))
            paths = [f"tests/{name}" for name in tests[mutant.file]]
            result = run_tests(tree, paths, *options)
            (tree / mutant.file).write_text(source)
            trees.put(tree)
            results[mutant.key] = {"mutant": mutant.key, **result}
            with path.open("a") as file:
                file.write(json.dumps(results[mutant.key]) + "\n")
            said = "{outcome:9} {seconds:4} s  {by}".format(**result)
            print(f"{mutant.key}\n    {said}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, [m for m in mutants if m.key not in results]))
        caught_by = {results[mutant.key]["by"] for mutant in mutants} - {""}
        if caught_by:
            whole = run_tests(trees.get(), sorted(caught_by), *options)
            passed = "pass" if whole["outcome"] == "survived" else f"give {whole}"
            print(f"{len(caught_by)} tests that caught {passed} in the whole library.")
    return results


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="run mutants with this text in them")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--exhaustive", action="store_true", help="run all tests")
    parser.add_argument("--results", type=Path, default=ROOT / "runs/mutants.jsonl")
    args = parser.parse_args()
    mutants, tests = read_table()
    chosen = [mutant for mutant in mutants if args.only in mutant.key]
    options = ["-m", ""] if args.exhaustive else []
    results = run_mutants(chosen, tests, args.results, args.jobs, *options)
    outcomes = collections.Counter(results[m.key]["outcome"] for m in chosen)
    for mutant in chosen:
        if not results[mutant.key]["outcome"].startswith("caught"):
            print(f"not caught: {mutant.key}. {mutant.reason}")
    counts = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
    print(f"{len(chosen)} mutants: {counts}.")


if __name__ == "__main__":
    main()

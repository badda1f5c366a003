"""Measures the tests: breaks the library in many ways, one at a time, and runs them.

    python -m tests.mutants --suite short --jobs 2
    python -m tests.mutants --suite short --only gru    # some mutants
    python -m tests.mutants --suite full --exhaustive   # every test, however slow
    python -m tests.mutants --write                     # the table in tests/README.md

`mutants.toml` holds the mutants, and the tests of each file of the library. A mutant is
caught if one of these tests fails that passes in the library as it is. Results are kept
in a file, by suite, so that a run that was broken off goes on.
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
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
# More than the tests of any file take: a mutant may make a loop without an end.
SECONDS = 1800
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=no", "-rfE")
PYTEST += ("-p", "no:cacheprovider")
# By pytest's exit status.
OUTCOMES = {0: "survived", 1: "caught", 2: "caught at import"}


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
      kind: what sort of fault.
      at: `file.py:Class.function`; a file alone for what is outside of functions.
      old: text that stands once there.
      new: what takes its place.
      fault: what is wrong then.
      reason: why the tests do not find it; empty if they do.
    """

    kind: str
    at: str
    old: str
    new: str
    fault: str
    reason: str = ""

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


class Results:
    """What one suite found: a line of JSON for each mutant, in a file of all suites."""

    def __init__(self, path: Path, suite: str):
        self.path, self.suite = path, suite
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        self.of = {r["mutant"]: r for r in found if r["suite"] == suite}
        # By any suite: these tests are run ahead of the others.
        self.caught_by = {r["mutant"]: r["by"] for r in found if r["by"]}

    def add(self, mutant: Mutant, result: dict) -> None:
        result = {"suite": self.suite, "mutant": mutant.key, **result}
        self.of[mutant.key] = result
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")

    def summary(self, mutants: list[Mutant]) -> str:
        """Returns how many mutants of each kind were run, and what came of it."""
        ran = [mutant for mutant in mutants if mutant.key in self.of]
        results = [self.of[mutant.key] for mutant in ran]
        outcomes = collections.Counter(result["outcome"] for result in results)
        counts = collections.Counter(mutant.kind for mutant in ran)
        return (
            f"{self.suite} suite: {len(ran)} mutants in {len({m.at for m in ran})} "
            f"functions ({', '.join(f'{n} {kind}' for kind, n in counts.items())}); "
            f"{', '.join(f'{n} {outcome}' for outcome, n in outcomes.items())}; "
            f"{sum(result['seconds'] for result in results)} s."
        )


def run_mutants(mutants, tests, results: Results, jobs: int, *options: str) -> None:
    """Runs the mutants without results, then the tests that caught in the whole."""
    with tempfile.TemporaryDirectory() as folder:
        trees = queue.SimpleQueue()
        for k in range(jobs):
            trees.put(copy_tree(Path(folder, str(k)).resolve()))

        def run(mutant):
            tree = trees.get()
            source = (tree / mutant.file).read_text()
            (tree / mutant.file).write_text(mutant.applied(source))
            paths = [f"tests/{name}" for name in tests[mutant.file]]
            first = results.caught_by.get(mutant.key)
            result = run_tests(tree, [first], *options) if first else {"outcome": ""}
            if result["outcome"] != "caught":
                result = run_tests(tree, paths, *options)
            (tree / mutant.file).write_text(source)
            trees.put(tree)
            results.add(mutant, result)
            said = "{outcome:9} {seconds:4} s  {by}".format(**result)
            print(f"{mutant.key}\n    {said}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, [m for m in mutants if m.key not in results.of]))
        caught_by = {results.of[mutant.key]["by"] for mutant in mutants} - {""}
        if caught_by:
            whole = run_tests(trees.get(), sorted(caught_by), *options)
            passed = "pass" if whole["outcome"] == "survived" else f"give {whole}"
            print(f"{len(caught_by)} tests that caught {passed} in the whole library.")


def write_table(mutants: list[Mutant], path: Path) -> None:
    """Writes what the short suite and the old one found between the README's marks."""
    suites = [Results(path, suite) for suite in ("short", "old")]

    def found(results, mutant):
        result = results.of.get(mutant.key, {"outcome": "not run", "by": ""})
        test = result["by"].removeprefix("tests/").partition("[")[0]
        return f"`{test}`" if test else result["outcome"]

    rows = [("Kind", "Function", "Fault", "Short suite", "Old suite"), ("---",) * 5]
    for mutant in sorted(mutants, key=lambda mutant: (mutant.kind, mutant.at)):
        fault = mutant.fault + (f" ({mutant.reason})" if mutant.reason else "")
        caught_by = [found(results, mutant) for results in suites]
        rows.append((mutant.kind, f"`{mutant.at}`", fault, *caught_by))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    summaries = [f"\n{results.summary(mutants)}" for results in suites]
    before, _, rest = (TESTS / "README.md").read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    text = "\n".join([BEGIN, "", *lines, *summaries, "", END])
    (TESTS / "README.md").write_text(before + text + after)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--suite", default="short", help="name of the tests as they are"
    )
    parser.add_argument("--only", default="", help="run mutants with this text in them")
    parser.add_argument("--kind", help="run mutants of this kind")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--exhaustive", action="store_true", help="run all tests")
    parser.add_argument("--results", type=Path, default=TESTS / "mutants.jsonl")
    parser.add_argument(
        "--write", action="store_true", help="write the table, run none"
    )
    args = parser.parse_args()
    mutants, tests = read_table()
    if args.write:
        return write_table(mutants, args.results)
    chosen = [m for m in mutants if args.only in m.key and args.kind in (None, m.kind)]
    results = Results(args.results, args.suite)
    options = ["-m", ""] if args.exhaustive else []
    run_mutants(chosen, tests, results, args.jobs, *options)
    for mutant in chosen:
        if not results.of[mutant.key]["outcome"].startswith("caught"):
            print(f"not caught: {mutant.key}")
    print(results.summary(chosen))


if __name__ == "__main__":
    main()

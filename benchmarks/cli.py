"""The command line, `python -m benchmarks`."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import format_case, write_table
from benchmarks.sizes import (
    CELLS,
    DEFAULT_SIZES,
    MODES,
    SIZE_NAMES,
    SIZES,
    cases,
    describe,
)

RESULTS = Path("benchmarks/results.json")
PROG = "python -m benchmarks"


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the arguments after `python -m benchmarks`; default: those of the process.

    Returns:
      0 on success, 2 after a user error, 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["table"]:
            _table(arguments[1:])
        elif arguments[:1] == ["online"]:
            # Imported here because it needs the experiments.
            from benchmarks.online import main as online

            online()
        elif arguments[:1] == ["kernels"]:
            from benchmarks.kernels import main as kernels

            kernels()
        elif arguments[:1] == ["walk"]:
            from benchmarks.walk import main as walk

            walk()
        else:
            _measure(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _measure(arguments: list[str]) -> None:
    # Imported here because it imports jax, which `table` does not need.
    from benchmarks.measure import PEERS, describe_environment, measure
    from benchmarks.report import OURS

    others = [name for name in PEERS if name != OURS]
    options = _measure_parser(others).parse_args(arguments)
    chosen = list(cases(options.cells, options.sizes))
    if not chosen:
        raise ValueError(
            "no case matches --cells and --sizes: ConvLSTM runs on `images`, MinGRU "
            "and IndRNN on `elementwise`, the other cells on the other sizes."
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"environment": describe_environment(), "cases": []}
    for case in measure(
        chosen, options.modes, options.peers, options.rounds, options.seconds
    ):
        print(format_case(case), end="\n\n", flush=True)
        results["cases"].append(case)
        # After every case, so that an interrupted run keeps its results.
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {options.out}")


def _measure_parser(peers: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Compare the speed of rnncells with other libraries.",
        epilog="The default run takes about half an hour on two CPU cores. "
        f"`{PROG} table` writes results into a page; see `table --help`. "
        f"`{PROG} online` measures the online learning of the experiments, "
        f"`{PROG}.gradients` the gradient methods, and `{PROG} kernels` the time to "
        f"compile. `{PROG} walk` counts the functions that a call runs.",
    )

    def several(name: str, choices: Any, default: Any, about: str = "") -> None:
        words = f"{about}default: {' '.join(default)}"
        parser.add_argument(
            name, nargs="*", choices=choices, default=default, help=words
        )

    first = {name: dataclasses.asdict(SIZES[name][0]) for name in DEFAULT_SIZES}
    sizes = "; ".join(f"{name} {describe(size)}" for name, size in first.items())
    several("--cells", CELLS, CELLS)
    several("--sizes", SIZE_NAMES, DEFAULT_SIZES, f"batch×time, in→out: {sizes}; ")
    several("--modes", MODES, MODES)
    several("--peers", peers, peers, "libraries to compare with; ")
    parser.add_argument(
        "--rounds",
        type=_count,
        default=15,
        help="number of measurements of each case (default: 15)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=180,
        help="time limit of a case, after at least 3 rounds (default: 180)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    return parser


def _table(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"{PROG} table", description="Write results as tables into a page."
    )
    for name, path in (
        ("--results", RESULTS),
        ("--page", Path("docs/benchmarks.md")),
        ("--plot", Path("docs/benchmarks.svg")),
    ):
        parser.add_argument(name, type=Path, default=path, help=f"default: {path}")
    options = parser.parse_args(arguments)
    # Imported here so that nothing else needs matplotlib.
    from benchmarks.plot import save_picture

    if not options.results.exists():
        raise ValueError(f"{options.results} does not exist. Run `{PROG}` first.")
    results = json.loads(options.results.read_text())
    picture = os.path.relpath(options.plot, options.page.parent)
    write_table(results, options.page, Path(picture).as_posix())
    save_picture(results, options.plot)
    print(f"wrote {options.page} and {options.plot}")


def _count(word: str) -> int:
    count = int(word)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {count}")
    return count

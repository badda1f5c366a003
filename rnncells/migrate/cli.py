"""The command line, `rnncells migrate PATHS`."""

import argparse
import difflib
import os
import sys
from collections import Counter
from pathlib import Path

from rnncells.migrate import params
from rnncells.migrate.files import Looked, dirty_trees, look_at_all, python_files, write
from rnncells.migrate.rules import RULES


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the words after `rnncells`; None takes the process's own.

    Returns:
      0 if all went well, 1 if `--check` found something to change, 2 after a mistake.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.verb == "migrate-params":
            return params.run(options)
        return run(options)
    except BrokenPipeError:
        # The reader, as `head`, has seen enough; nothing more can be written.
        sys.stdout = None
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    rules = "\n".join(f"  {name}  {what}" for name, what in RULES.items())
    parser = argparse.ArgumentParser(
        prog="rnncells", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    command = verbs.add_parser(
        "migrate",
        help="rewrite code for Flax <= 0.6.11",
        description="Rewrites code for the recurrent API of Flax <= 0.6.11. Without "
        "--write or --check, prints what would change.",
        epilog=f"rules:\n{rules}\n\nA line with `# rnncells: skip` stays as it is.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "paths", nargs="+", type=Path, help="files, and folders of *.py"
    )
    command.add_argument(
        "--to", choices=("flax", "rnncells"), default="flax", help="today's library"
    )
    way = command.add_mutually_exclusive_group()
    way.add_argument("--write", action="store_true", help="change the files")
    way.add_argument(
        "--check", action="store_true", help="exit with 1 if any would change"
    )
    command.add_argument("--select", type=_rules, help="these rules alone: RC01,RC02")
    command.add_argument("--ignore", type=_rules, default=frozenset(), help="not these")
    command.add_argument(
        "--allow-dirty", action="store_true", help="write though git has changes"
    )
    command.add_argument("--backup", action="store_true", help="keep FILE.orig")
    command.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time"
    )
    command = verbs.add_parser(
        "migrate-params",
        help="rename parameters between modules that hold the same cells",
        description="Renames parameters between modules that hold the same cells: in "
        "compact methods or setup, lifted by nn.scan, in RNN, in layers of rnncells. "
        "Without --write, prints what would move.",
        epilog="exit status: 0 if all went well, 2 after a mistake.",
    )
    params.add_options(command)
    return parser


def _rules(text: str) -> frozenset[str]:
    names = frozenset(name.strip().upper() for name in text.split(","))
    unknown = sorted(names - set(RULES))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown rules {', '.join(unknown)}; there are {', '.join(RULES)}"
        )
    return names


def run(options: argparse.Namespace) -> int:
    """Looks at all files, prints or writes what they become, and sums up."""
    if options.jobs < 1:
        raise ValueError(f"`--jobs` must be at least 1, got {options.jobs}.")
    files = python_files(options.paths)
    if options.write and not options.allow_dirty:
        dirty = dirty_trees(options.paths)
        if dirty:
            raise ValueError(
                f"the git tree {dirty[0]} has changes that are not committed: commit "
                "them, or give --allow-dirty."
            )
    rules = (options.select or frozenset(RULES)) - options.ignore
    looked = []
    for one in look_at_all(files, options.to, rules, options.jobs):
        looked.append(one)
        _show_progress(len(looked), len(files))
        if one.migration is None or one.migration.data == one.before:
            continue
        if options.write:
            write(one, options.backup)
        elif not options.check:
            print(*diff(one), sep="", end="")
    _sum_up(looked, options.write)
    changed = [
        one for one in looked if one.migration and one.migration.data != one.before
    ]
    return 1 if options.check and changed else 0


def diff(looked: Looked) -> list[str]:
    """Returns the lines of a unified diff of one file."""
    before, after = (
        data.decode(errors="replace").splitlines(keepends=True)
        for data in (looked.before, looked.migration.data)
    )
    name = looked.path.as_posix()
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in lines
    ]


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done}/{total} files", end=end, file=sys.stderr, flush=True)


def _sum_up(looked: list[Looked], is_written: bool) -> None:
    """Prints what a person has to look at, and how often each rule was applied."""
    done, left = Counter(), Counter()
    for one in looked:
        if one.migration is None:
            print(f"{one.path}: left as it is, {one.error}", file=sys.stderr)
            continue
        for note in one.migration.notes:
            (left if note.why else done)[note.rule] += 1
            if note.why:
                print(
                    f"{one.path}:{note.line}: {note.rule} {note.why}", file=sys.stderr
                )
    changed = sum(
        one.migration is not None and one.migration.data != one.before for one in looked
    )
    verb = "changed" if is_written else "would change"
    print(f"{changed} of {len(looked)} files {verb}", file=sys.stderr)
    for rule in sorted(done | left):
        counts = f"{done[rule]:5} rewritten, {left[rule]:5} to look at"
        print(f"  {rule}  {counts}  {RULES[rule]}", file=sys.stderr)

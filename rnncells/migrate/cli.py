"""The command line, `rnncells migrate PATHS`."""

import argparse
import difflib
import io
import os
import stat
import sys
from collections import Counter
from pathlib import Path

from rnncells import __version__
from rnncells.migrate import params
from rnncells.migrate.files import Looked, look_at_all, not_in_git, python_files, write
from rnncells.migrate.rules.finding import RULES
from rnncells.migrate.uses import with_uses

STATUS = """\
exit status:
  0  all went well; with --check, nothing would change
  1  with --check, files would change, if only by comments that mark lines
  2  a mistake on the command line, or files that cannot be read (the others are done)
"""
# So many files are named.
SHOWN = 5
# By anyone.
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def main(argv: list[str] | None = None, prog: str = "rnncells") -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the words after `rnncells`; None takes the process's own.
      prog: how the command is called, as usage says it.

    Returns:
      0, 1 or 2, as `--help` says; 130 after an interrupt.
    """
    parser = _parser(prog)
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


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    version = f"rnncells {__version__}"
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(dest="verb", required=True)
    rules = "\n".join(f"  {name}  {what}" for name, what in RULES.items())
    command = verbs.add_parser(
        "migrate",
        help="rewrite code for Flax <= 0.6.11",
        description="Rewrites code for the recurrent API of Flax <= 0.6.11. Without "
        "--write or --check,\nprints what would change, as a diff for `git apply` or "
        "`patch -p1`.",
        epilog=f"rules:\n{rules}\n\nA line with `# rnncells: skip` stays as it is.\n\n"
        f"{STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(command)
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


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "paths", nargs="+", type=Path, help="files, and folders of *.py"
    )
    command.add_argument(
        "--to",
        choices=("flax", "rnncells"),
        default="flax",
        help="where recurrent names are imported from (default: %(default)s)",
    )
    way = command.add_mutually_exclusive_group()
    way.add_argument("--write", action="store_true", help="change the files")
    way.add_argument(
        "--check", action="store_true", help="name the files that would change"
    )
    command.add_argument(
        "--select", type=_rules, help="these rules alone, as RC01,RC02 (default: all)"
    )
    command.add_argument(
        "--ignore", type=_rules, default=frozenset(), help="not these (default: none)"
    )
    command.add_argument(
        "--allow-dirty",
        action="store_true",
        help="write files too that git could not bring back: with changes that are not "
        "committed, or not tracked",
    )
    command.add_argument(
        "--backup", action="store_true", help="keep what was as FILE.orig"
    )
    command.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes at a time (default: %(default)s)",
    )


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
    unread: list[OSError] = []
    files = python_files(options.paths, unread.append)
    rules = (options.select or frozenset(RULES)) - options.ignore
    looked = []
    for one in look_at_all(files, options.to, rules, options.jobs):
        looked.append(one)
        _show_progress(len(looked), len(files))
        if one.is_changed and not (options.write or options.check):
            sys.stdout.buffer.write(diff(one))
            sys.stdout.flush()
    changed = [one for one in looked if one.is_changed]
    if options.write:
        _write(changed, options.allow_dirty, options.backup)
    _sum_up(with_uses(looked, options.write), unread, options)
    if unread or any(one.migration is None for one in looked):
        return 2
    return 1 if options.check and changed else 0


def _write(changed: list[Looked], allow_dirty: bool, backup: bool) -> None:
    """Writes files; none if one is read-only, or git could not bring all back."""
    paths = [one.path for one in changed]
    # A file that is replaced need not be writable for that.
    closed = [path for path in paths if not path.stat().st_mode & WRITABLE]
    if closed:
        raise ValueError(f"no file is written: read-only: {_few(closed)}.")
    dirty = [] if allow_dirty else not_in_git(paths)
    if dirty:
        raise ValueError(
            "no file is written: git could not bring back what is in "
            f"{_few(dirty)}: commit that, or give --allow-dirty."
        )
    for one in changed:
        write(one, backup)


def _few(paths: list[Path]) -> str:
    names = [str(path) for path in paths[:SHOWN]]
    names += [f"{len(paths) - SHOWN} more"] if len(paths) > SHOWN else []
    return ", ".join(names)


def diff(looked: Looked) -> bytes:
    """Returns a unified diff of one file, from the working folder if it is in it."""
    # Tools refuse paths by links.
    path, here = looked.path.resolve(), Path.cwd()
    # Tools refuse paths with `..`; from the root they take all others.
    name = path.relative_to(here if path.is_relative_to(here) else path.anchor)
    # They take what is behind a space for a date, but for a tab.
    label = os.fsencode(name.as_posix()) + (b"\t" if " " in str(name) else b"")
    # Lines end where those tools end them, and keep their encoding.
    before, after = (
        io.BytesIO(data).readlines() for data in (looked.before, looked.migration.data)
    )
    lines = difflib.diff_bytes(
        difflib.unified_diff, before, after, b"a/" + label, b"b/" + label
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done}/{total} files", end=end, file=sys.stderr, flush=True)


def _sum_up(
    looked: list[Looked], unread: list[OSError], options: argparse.Namespace
) -> None:
    """Prints what a person has to look at, and how often each rule was applied."""
    for error in unread:
        print(f"{error.filename}: not looked into, {error.strerror}", file=sys.stderr)
    done, left = Counter(), Counter()
    for one in looked:
        if one.migration is None:
            print(f"{one.path}: left as it is, {one.error}", file=sys.stderr)
            continue
        if one.error:
            print(f"{one.path}: {one.error}", file=sys.stderr)
        if options.check and one.is_changed:
            print(f"{one.path}: would change", file=sys.stderr)
        for note in one.migration.notes:
            (left if note.why else done)[note.rule] += 1
            if note.why:
                line = note.line_after if options.write else note.line
                print(f"{one.path}:{line}: {note.rule} {note.why}", file=sys.stderr)
    changed = sum(one.is_changed for one in looked)
    verb = "changed" if options.write else "would change"
    print(f"{changed} of {len(looked)} files {verb}", file=sys.stderr)
    for rule in sorted(done | left):
        counts = f"{done[rule]:5} rewritten, {left[rule]:5} to look at"
        print(f"  {rule}  {counts}  {RULES[rule]}", file=sys.stderr)

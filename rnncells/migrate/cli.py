"""The command line, `rnncells migrate PATHS`."""

import argparse
import difflib
import io
import os
import stat
import sys
import warnings
from collections import Counter
from pathlib import Path

from rnncells.migrate.file_results import (
    STDIN,
    FileResult,
    ignore_warnings,
    migrate_file,
    migrate_files,
)
from rnncells.migrate.files import not_in_git, source_files, write
from rnncells.migrate.options import parser
from rnncells.migrate.rules.finding import RULES
from rnncells.migrate.uses import with_uses

# Number of files that an error message names.
SHOWN = 5
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def main(argv: list[str] | None = None, prog: str = "rnncells") -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the arguments; None reads those of the process.
      prog: the command as the usage line prints it.

    Returns:
      0, 1 or 2, as listed by `--help`; 130 after an interrupt.
    """
    options = parser(prog).parse_args(argv)
    try:
        if options.command == "migrate-params":
            return _migrate_params(options)
        with warnings.catch_warnings():
            ignore_warnings()
            return run(options)
    except BrokenPipeError:
        # The reader, such as `head`, is gone: nothing more can be printed.
        sys.stdout = None
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _migrate_params(options: argparse.Namespace) -> int:
    try:
        from rnncells.migrate import params
    except ImportError as error:
        raise ValueError(
            f"`rnncells migrate-params` needs JAX and Flax: {error}. Install rnncells "
            "with its dependencies (in a clone, `pip install .`). Only `rnncells "
            "migrate` runs without them."
        ) from error
    return params.run(options)


def run(options: argparse.Namespace) -> int:
    """Rewrites all files; prints diffs or writes the files, and prints a summary."""
    if options.jobs < 1:
        raise ValueError(f"`--jobs` must be at least 1, got {options.jobs}.")
    rules = (options.select or frozenset(RULES)) - options.ignore
    if STDIN in options.paths:
        return _run_stdin(options, rules)
    unread: list[OSError] = []
    files = source_files(options.paths, unread.append)
    results = []
    for result in migrate_files(files, options.to, rules, options.jobs):
        results.append(result)
        _show_progress(len(results), len(files))
        if result.is_changed and not (options.write or options.check):
            sys.stdout.buffer.write(diff(result))
            sys.stdout.flush()
    if options.write:
        changed = [result for result in results if result.is_changed]
        _write(changed, options.allow_dirty, options.backup)
    _sum_up(with_uses(results, options.write), unread, options)
    return _status(results, unread, options)


def _run_stdin(options: argparse.Namespace, rules: frozenset[str]) -> int:
    """Rewrites standard input to standard output."""
    if options.paths != [STDIN] or options.write:
        raise ValueError(
            "`-` reads standard input; remove all other paths, and --write."
        )
    result = migrate_file(STDIN, options.to, rules)
    if not options.check:
        sys.stdout.buffer.write(result.after)
        sys.stdout.flush()
    _sum_up([result], [], options)
    return _status([result], [], options)


def _status(
    results: list[FileResult], unread: list[OSError], options: argparse.Namespace
) -> int:
    if unread or any(result.migration is None for result in results):
        return 2
    has_changes = options.check and any(result.is_changed for result in results)
    has_marks = options.fail_on_marks and any(result.has_marks for result in results)
    return 1 if has_changes or has_marks else 0


def _write(changed: list[FileResult], allow_dirty: bool, backup: bool) -> None:
    """Writes all files, or none if one is read-only or has changes not in git."""
    paths = [result.path for result in changed]
    # Replacing a file does not need the permission to write it.
    read_only = [path for path in paths if not path.stat().st_mode & WRITABLE]
    if read_only:
        raise ValueError(f"no file was written: read-only files: {_few(read_only)}.")
    dirty = [] if allow_dirty else not_in_git(paths)
    if dirty:
        raise ValueError(
            "no file was written: git could not restore the present contents of "
            f"{_few(dirty)}. Commit these files, or pass --allow-dirty."
        )
    for result in changed:
        write(result.path, result.before, result.after, backup)


def _few(paths: list[Path]) -> str:
    names = [str(path) for path in paths[:SHOWN]]
    names += [f"{len(paths) - SHOWN} more"] if len(paths) > SHOWN else []
    return ", ".join(names)


def diff(result: FileResult) -> bytes:
    """Returns a unified diff of one file, with its path from the working folder.

    The path of a file elsewhere starts at the root folder.
    """
    # Tools refuse symbolic links, and paths with `..`.
    path, here = result.path.resolve(), Path.cwd()
    name = path.relative_to(here if path.is_relative_to(here) else path.anchor)
    # A tab ends the name: what follows a space would be read as a date.
    label = os.fsencode(name.as_posix()) + (b"\t" if " " in str(name) else b"")
    # Bytes are split at "\n" alone, as those tools do, and keep their encoding.
    before, after = (
        io.BytesIO(data).readlines() for data in (result.before, result.after)
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
    results: list[FileResult], unread: list[OSError], options: argparse.Namespace
) -> None:
    """Prints the marked lines, and counts for each rule."""
    for error in unread:
        print(f"{error.filename}: not searched: {error.strerror}", file=sys.stderr)
    done: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for result in results:
        if result.migration is None:
            print(f"{result.path}: not rewritten: {result.error}", file=sys.stderr)
            continue
        if result.error:
            print(f"{result.path}: {result.error}", file=sys.stderr)
        if options.check and result.is_changed:
            print(f"{result.path}: would change", file=sys.stderr)
        for note in result.migration.notes:
            (left if note.why else done)[note.rule] += 1
            if note.why:
                line = note.line_after if options.write else note.line
                place = result.place(line, is_after=options.write)
                print(f"{place}: {note.rule} {note.why}", file=sys.stderr)
        if options.fail_on_marks and not any(n.why for n in result.migration.notes):
            for line in result.marked_lines(is_after=options.write):
                place = result.place(line, is_after=options.write)
                print(f"{place}: a mark of an earlier run is left", file=sys.stderr)
    changed = sum(result.is_changed for result in results)
    verb = "changed" if options.write else "would change"
    print(f"{changed} of {len(results)} files {verb}", file=sys.stderr)
    for rule in sorted(done | left):
        counts = f"{done[rule]:5} rewritten, {left[rule]:5} marked"
        print(f"  {rule}  {counts}  {RULES[rule]}", file=sys.stderr)

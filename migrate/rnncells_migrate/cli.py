"""The command line, `rnncells-migrate PATHS`."""

import argparse
import difflib
import io
import os
import sys
from collections import Counter
from pathlib import Path

from rnncells_migrate import __version__
from rnncells_migrate.changes import RULES
from rnncells_migrate.documents import STDIN, Document, document
from rnncells_migrate.files import source_files, write

DESCRIPTION = """\
Rewrite Python files and Jupyter notebooks written for Flax <= 0.6.11: update the
recurrent cells to today's API. Print a diff for `git apply` or `patch -p1`.
"""
PATHS = "files, and folders of *.py and *.ipynb files; `-` alone reads standard input"
STATUS = """
A statement with the comment `# rnncells: skip` is not rewritten.

exit status:
  0  no errors; with --check, no file would change
  1  with --check, a file would change; with --fail-on-marks, a line is marked
  2  an error, such as a file that cannot be parsed (all others are done)
"""
OPTIONS = {
    "--diff": "print a diff (the default)",
    "--check": "list the files that would change",
    "--write": "change the files",
    "--backup": "with --write, keep the old file as FILE.orig; replaces no other file",
    "--fail-on-marks": "exit with status 1 if a line is marked",
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status, as listed by `--help`."""
    options = _parser().parse_args(argv)
    try:
        return run(options)
    except BrokenPipeError:
        # The reader, such as `head`, is gone: nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    rules = [f"  {name}  {text}" for name, text in RULES.items()]
    parser = argparse.ArgumentParser(
        prog="rnncells-migrate",
        description=DESCRIPTION,
        epilog="\n".join(["rules:", *rules, STATUS]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("paths", nargs="+", type=Path, help=PATHS)
    mode = parser.add_mutually_exclusive_group()
    for index, (name, text) in enumerate(OPTIONS.items()):
        group = mode if index < 3 else parser
        group.add_argument(name, action="store_true", help=text)
    return parser


def run(options: argparse.Namespace) -> int:
    """Rewrites all files; prints diffs or writes the files, and prints a summary."""
    is_stdin = options.paths == [STDIN] and not options.write
    if STDIN in options.paths and not is_stdin:
        raise ValueError("`-` reads standard input: remove other paths, and --write.")
    results = []
    for path in options.paths if is_stdin else source_files(options.paths):
        data = sys.stdin.buffer.read() if is_stdin else path.read_bytes()
        result = document(path, data)
        results.append(result)
        if options.write and result.is_changed:
            write(path, result.before, result.after, options.backup)
        elif not (options.write or options.check):
            is_code = is_stdin and not options.diff
            sys.stdout.buffer.write(result.after if is_code else diff(result))
    sys.stdout.flush()
    print(_summary(results, options), file=sys.stderr)
    if any(result.error for result in results):
        return 2
    has_changes = options.check and any(result.is_changed for result in results)
    has_marks = options.fail_on_marks and any(result.marks for result in results)
    return 1 if has_changes or has_marks else 0


def diff(result: Document) -> bytes:
    """Returns a unified diff, with the path from the working folder, or the root."""
    # Tools refuse symbolic links, and paths with `..`.
    path, here = result.path.resolve(), Path.cwd()
    name = path.relative_to(here if path.is_relative_to(here) else path.anchor)
    # A tab ends the name: what follows a space would be read as a date.
    label = os.fsencode(name.as_posix()) + (b"\t" if " " in str(name) else b"")
    # Bytes are split at "\n" alone, as those tools do.
    old, new = (io.BytesIO(text).readlines() for text in (result.before, result.after))
    names = b"a/" + label, b"b/" + label
    lines = difflib.diff_bytes(difflib.unified_diff, old, new, *names)
    end = b"\n\\ No newline at end of file\n"
    return b"".join(s if s.endswith(b"\n") else s + end for s in lines)


def _summary(results: list[Document], options: argparse.Namespace) -> str:
    """Returns the messages about all files, and the counts of each rule."""
    lines: list[str] = []
    for result in results:
        if result.error:
            lines.append(f"{result.path}: not rewritten: {result.error}")
        if options.check and result.is_changed:
            lines.append(f"{result.path}: would change")
        lines += result.messages
    changed = sum(result.is_changed for result in results)
    verb = "changed" if options.write else "would change"
    lines.append(f"{changed} of {len(results)} files {verb}")
    done = sum((result.counts for result in results), Counter())
    left = Counter(mark.rule for result in results for mark in result.marks)
    for rule in sorted({*done, *left}):
        counts = f"{done[rule]:5} rewritten, {left[rule]:5} marked"
        lines.append(f"  {rule}  {counts}  {RULES[rule]}")
    return "\n".join(lines)

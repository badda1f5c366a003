"""The arguments of the command line."""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from rnncells import __version__
from rnncells.migrate.rules.finding import RULES

MIGRATE = """\
Rewrite Python files and Jupyter notebooks written for Flax <= 0.6.11: update the
recurrent cells to today's API.
Without --write or --check, print a diff for `git apply` or `patch -p1`.
"""
NOT_PARSED = """\
Files that name no recurrent cell of Flax are not parsed: syntax errors in them are not
reported.
"""
STATUS = """\
exit status:
  0  no errors; with --check, no file would change
  1  with --check, a file would change; with --fail-on-marks, a line is marked
  2  an error on the command line, or a file that cannot be read or parsed (all other
     files are done)
"""
MIGRATE_PARAMS = """\
Rename the parameters in a checkpoint after cells moved to another module: to or from a
compact method, setup, nn.scan, RNN, or a layer of rnncells.
Without --write, print the new names.
"""
WRITE = "pass --write to change the files"
DIFF = "without --write and --check, the command only prints a diff"
# Options of similar tools, and what to do here.
OF_OTHERS = dict.fromkeys(
    ("-i", "-w", "--inplace", "--in-place", "--in_place", "--fix", "--apply"), WRITE
) | dict.fromkeys(("-n", "--dry-run", "--dry_run", "--diff", "--print"), DIFF)
SAFETENSORS = ".safetensors"


class Parser(argparse.ArgumentParser):
    """A parser that explains the options of other tools."""

    def error(self, message: str) -> NoReturn:
        # argparse has no other place for it: the message lists the options.
        _, _, unknown = message.partition("unrecognized arguments: ")
        for word in unknown.split():
            name = OF_OTHERS.get(word.partition("=")[0])
            if name is not None:
                message = f"unknown option {word}: {name}"
        super().error(message)


def parser(prog: str) -> argparse.ArgumentParser:
    """Returns the parser of all commands.

    Args:
      prog: the command as the usage line prints it.
    """
    parser = Parser(prog=prog)
    version = f"rnncells {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    rules = "\n".join(f"  {name}  {what}" for name, what in RULES.items())
    command = commands.add_parser(
        "migrate",
        help="rewrite code for Flax <= 0.6.11",
        description=MIGRATE,
        epilog=f"rules:\n{rules}\n\nA line with the comment `# rnncells: skip` is not "
        f"rewritten.\n{NOT_PARSED}\n{STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_migrate(command)
    command = commands.add_parser(
        "migrate-params",
        help="rename parameters after cells moved to another module",
        description=MIGRATE_PARAMS,
        epilog="exit status: 0 without errors, else 2.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_migrate_params(command)
    return parser


def _add_migrate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "paths",
        nargs="+",
        type=Path,
        help="files, and folders of *.py and *.ipynb files; `-` alone reads standard "
        "input and prints the new code",
    )
    command.add_argument(
        "--to",
        choices=("flax", "rnncells"),
        default="flax",
        help="library to import recurrent names from (default: %(default)s)",
    )
    mode = command.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true", help="change the files")
    mode.add_argument(
        "--check", action="store_true", help="list the files that would change"
    )
    command.add_argument(
        "--fail-on-marks",
        action="store_true",
        help="exit with status 1 if a line is marked, now or by an earlier run",
    )
    command.add_argument(
        "--select",
        type=_rules,
        help="apply only these rules, as RC01,RC02 (default: all)",
    )
    command.add_argument(
        "--ignore",
        type=_rules,
        default=frozenset(),
        help="do not apply these rules (default: none)",
    )
    command.add_argument(
        "--allow-dirty",
        action="store_true",
        help="write files even if they have uncommitted changes or git does not track "
        "them",
    )
    command.add_argument(
        "--backup",
        action="store_true",
        help="keep the old file as FILE.orig, or FILE.orig1 and so on if that exists",
    )
    command.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="number of processes (default: %(default)s)",
    )


def _rules(text: str) -> frozenset[str]:
    names = frozenset(name.strip().upper() for name in text.split(","))
    unknown = sorted(names - set(RULES))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown rules: {', '.join(unknown)}; the rules are {', '.join(RULES)}"
        )
    return names


def _add_migrate_params(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "old",
        type=Path,
        help="checkpoint with the old names: parameters, variables or a training "
        f"state, as safetensors (*{SAFETENSORS}) or Flax's msgpack bytes (other names)",
    )
    command.add_argument(
        "--like",
        type=Path,
        required=True,
        metavar="FILE",
        help="file with the new names, such as newly initialized parameters",
    )
    command.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="match two modules by name, as params/Dense_0=params/head; may be "
        "repeated",
    )
    command.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"write the renamed checkpoint: as safetensors if FILE is *{SAFETENSORS}, "
        "else as Flax's msgpack bytes (default: print the new names)",
    )
    command.add_argument(
        "--force", action="store_true", help="replace FILE if it exists"
    )

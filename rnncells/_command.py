"""The command line: `rnncells migrate-params`, and where `rnncells migrate` went."""

import argparse
import sys
from pathlib import Path

from rnncells import __version__

MIGRATE_PARAMS = """\
Rename the parameters in a checkpoint after cells moved to another module: to or from a
compact method, setup, nn.scan, RNN, or a layer of rnncells.
Without --write, print the new names.
"""


def main(argv: list[str] | None = None, prog: str = "rnncells") -> int:
    """Runs a command line and returns its exit status: 0 without errors, else 2."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["migrate"]:
        print(
            "error: `rnncells migrate` is now a distribution of its own, "
            "`rnncells-migrate`: install it from the folder migrate of the repository.",
            file=sys.stderr,
        )
        return 2
    options = parser(prog).parse_args(argv)
    try:
        from rnncells.interop import renamed_files

        renamed_files.run(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parser(prog: str) -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog=prog)
    version = f"rnncells {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "migrate-params",
        help="rename parameters after cells moved to another module",
        description=MIGRATE_PARAMS,
        epilog="exit status: 0 without errors, else 2.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "old",
        type=Path,
        help="checkpoint with the old names: parameters, variables or a training "
        "state, as safetensors (*.safetensors) or Flax's msgpack bytes (other names)",
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
        help="write the renamed checkpoint: as safetensors if FILE is *.safetensors, "
        "else as Flax's msgpack bytes (default: print the new names)",
    )
    command.add_argument(
        "--force", action="store_true", help="replace FILE if it exists"
    )
    return parser

"""`rnncells migrate-params`: parameters in a file, under the names of another file."""

import argparse
from pathlib import Path
from typing import Any

from flax import serialization

from rnncells.interop import files, renaming

SUFFIXES = (".msgpack", ".safetensors")


def add_options(command: argparse.ArgumentParser) -> None:
    kinds = " or ".join(SUFFIXES)
    command.add_argument("old", type=Path, help=f"the parameters: a file {kinds}")
    command.add_argument(
        "--like",
        type=Path,
        required=True,
        help="a file with the new names, as that of newly initialised parameters",
    )
    command.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="match two modules by hand, as params/Dense_0=params/head",
    )
    command.add_argument("--write", type=Path, metavar="FILE", help="write them there")


def run(options: argparse.Namespace) -> int:
    """Prints what moves where, and writes the parameters if asked to.

    Raises:
      ValueError: files of another kind, or modules that do not match.
    """
    pairs = [text.partition("=") for text in options.name]
    wrong = [text for text, (_, equals, _) in zip(options.name, pairs) if not equals]
    if wrong:
        raise ValueError(f"`--name` must be OLD=NEW, got {wrong[0]!r}.")
    names = {old: new for old, _, new in pairs}
    params, like = read(options.old), read(options.like)
    moved = renaming.mapping(params, like, names)
    for old, new in moved.items():
        print(f"{old} -> {new}")
    if not moved:
        print("all names stay")
    if options.write is not None:
        write(options.write, renaming.rename(params, like, names))
        print(f"wrote {options.write}")
    return 0


def read(path: Path) -> Any:
    """Returns the tree in a file of Flax's bytes, or of safetensors."""
    if path.suffix == ".safetensors":
        return files.load(path)
    _check(path)
    try:
        return serialization.msgpack_restore(path.read_bytes())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of Flax's bytes: {error}") from error


def write(path: Path, params: Any) -> None:
    if path.suffix == ".safetensors":
        files.save(path, params)
    else:
        _check(path)
        path.write_bytes(serialization.msgpack_serialize(params))


def _check(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path} must end in {' or '.join(SUFFIXES)}: save parameters by "
            "`flax.serialization.to_bytes(params)`, or by `rnncells.interop.files`."
        )

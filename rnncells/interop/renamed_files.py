"""`rnncells migrate-params`: renames the parameters in a checkpoint."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flax import serialization, traverse_util

from rnncells.interop import files, renaming

SAFETENSORS = ".safetensors"


def run(options: argparse.Namespace) -> None:
    """Prints the old and new names, and writes the checkpoint with `--write`.

    Raises:
      FileExistsError: the file to write exists.
      FileNotFoundError: a file to read, or the folder to write to, does not exist.
      ValueError: a file has another format, or modules do not match.
    """
    pairs = [text.partition("=") for text in options.name]
    wrong = [text for text, (_, equals, _) in zip(options.name, pairs) if not equals]
    if wrong:
        raise ValueError(f"`--name` must be OLD=NEW, got {wrong[0]!r}.")
    if options.write is not None and options.write.exists() and not options.force:
        raise FileExistsError(f"{options.write} exists. Pass --force to replace it.")
    if options.write is not None and not options.write.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {options.write.parent}")
    names = {old: new for old, _, new in pairs}
    params, like = read(options.old), read(options.like)
    moved = renaming.mapping(params, like, names)
    for old, new in moved.items():
        print(f"{old} -> {new}")
    if not moved:
        print("no name changes")
    if options.write is not None:
        write(options.write, renaming.rename(params, like, names))
        print(f"wrote {options.write}")


def read(path: Path) -> Any:
    """Returns the tree in a file of Flax's msgpack bytes or of safetensors.

    Raises:
      FileNotFoundError: the path does not exist.
      ValueError: the path is a folder, or the file has another format.
    """
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder. Restore an Orbax checkpoint with Orbax, and save it "
            "with `flax.serialization.to_bytes`; else pass a file in the folder."
        )
    if path.suffix == SAFETENSORS:
        return files.load(path)
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        if not isinstance(tree, dict):
            raise TypeError(f"expected a dictionary, got {type(tree).__name__}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold the bytes of `flax.serialization.to_bytes`, or be a "
            f"safetensors file named *{SAFETENSORS}: {error}"
        ) from error
    return tree


def write(path: Path, params: Any) -> None:
    """Writes a tree in the format that `read` expects for the file's name.

    Raises:
      ValueError: safetensors for a tree with leaves that are not arrays.
    """
    with _replacing(path) as beside:
        if path.suffix != SAFETENSORS:
            beside.write_bytes(serialization.msgpack_serialize(params))
            return
        flat = traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")
        lost = [name for name, leaf in flat.items() if not hasattr(leaf, "shape")]
        if lost:
            raise ValueError(
                f"{path}: safetensors files hold only arrays, but {lost[0]} is not an "
                "array. Write Flax's bytes to a file named *.msgpack instead."
            )
        files.save(beside, params)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside a file, which it replaces at the end."""
    beside = path.with_name(f".{path.name}.rnncells")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)

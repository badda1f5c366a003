"""`rnncells migrate-params`: parameters in a file, under the names of another file."""

import argparse
from pathlib import Path
from typing import Any

from flax import serialization, traverse_util

from rnncells.interop import files, renaming
from rnncells.migrate.files import replacing
from rnncells.migrate.options import SAFETENSORS


def run(options: argparse.Namespace) -> int:
    """Prints what moves where, and writes the parameters if asked to.

    Raises:
      FileExistsError: the file to write is there.
      ValueError: files of another kind, or modules that do not match.
    """
    pairs = [text.partition("=") for text in options.name]
    wrong = [text for text, (_, equals, _) in zip(options.name, pairs) if not equals]
    if wrong:
        raise ValueError(f"`--name` must be OLD=NEW, got {wrong[0]!r}.")
    if options.write is not None and options.write.exists() and not options.force:
        raise FileExistsError(f"{options.write} is there: give --force to replace it.")
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
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder: give a file in it; what Orbax keeps as a folder, "
            "restore, and save by `flax.serialization.to_bytes`."
        )
    if path.suffix == SAFETENSORS:
        return files.load(path)
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        if not isinstance(tree, dict):
            raise TypeError(f"it holds {type(tree).__name__}, no dictionary")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no file of Flax's bytes, as `flax.serialization.to_bytes` "
            f"makes them, nor named *{SAFETENSORS}: {error}"
        ) from error
    return tree


def write(path: Path, params: Any) -> None:
    """Writes a tree as what `read` takes a file of this name for."""
    with replacing(path) as beside:
        if path.suffix != SAFETENSORS:
            beside.write_bytes(serialization.msgpack_serialize(params))
            return
        flat = traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")
        lost = [name for name, leaf in flat.items() if not hasattr(leaf, "shape")]
        if lost:
            raise ValueError(
                f"{path}: safetensors keep arrays alone, and {lost[0]} is none: write "
                "Flax's bytes, as *.msgpack."
            )
        files.save(beside, params)

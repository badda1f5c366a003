"""`rnncells migrate-params`: renames the parameters in a checkpoint."""

import argparse
import os
from pathlib import Path
from typing import Any

from flax import serialization, traverse_util

from rnncells.interop import files, renaming

SAFETENSORS = ".safetensors"


def run(options: argparse.Namespace) -> None:
    """Prints the old and new names, and writes the checkpoint with `--write`."""
    for text in options.name:
        if "=" not in text:
            raise ValueError(f"`--name` must be OLD=NEW, got {text!r}.")
    if options.write is not None and options.write.exists() and not options.force:
        raise FileExistsError(f"{options.write} exists. Pass --force to replace it.")
    if options.write is not None and not options.write.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {options.write.parent}")
    names = dict(text.split("=", 1) for text in options.name)
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
    """Returns the tree in a file of Flax's msgpack bytes or of safetensors."""
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
    """Writes a tree in the format that `read` expects for the file's name."""
    temporary = path.with_name(f".{path.name}.rnncells")
    try:
        if path.suffix != SAFETENSORS:
            temporary.write_bytes(serialization.msgpack_serialize(params))
        else:
            flat = traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")
            for name, leaf in flat.items():
                if not hasattr(leaf, "shape"):
                    raise ValueError(
                        f"{path}: safetensors files hold only arrays, but {name} is "
                        "no array. Write Flax's bytes to a *.msgpack file instead."
                    )
            files.save(temporary, params)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

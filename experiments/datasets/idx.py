"""Reader of IDX files, the format of MNIST (LeCun, Cortes and Burges, 1998).

A file has two zero bytes, the type (8: unsigned byte), the number of axes, the size of
each axis (32 bits, big-endian), and the data.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from experiments.settings.rules import ConfigError, require

UNSIGNED_BYTE = 8


def file_in(folder: Path, name: str) -> Path | None:
    """Returns the path of a file, or of the same file with `.gz`, or None."""
    paths = folder / name, folder / f"{name}.gz"
    return next((path for path in paths if path.is_file()), None)


def read_idx(folder: Path, name: str, axes: int) -> np.ndarray:
    """Returns the array of unsigned bytes in an IDX file.

    Args:
      folder: folder of the file.
      name: name of the file, without `.gz`.
      axes: number of axes that the array must have, at least 1.

    Raises:
      ConfigError: the file is missing, cannot be read, or is not such an IDX file.
    """
    path = file_in(folder, name)
    if path is None:
        raise ConfigError(
            f"{folder / name} is missing: expected this file, or the same with .gz; "
            "put the four files of MNIST into that folder."
        )
    contents = _contents(path)
    magic = UNSIGNED_BYTE * 256 + axes
    found = int.from_bytes(contents[:4], "big")
    require(
        len(contents) >= 4 and found == magic,
        f"{path} must begin with the magic number {magic} of an IDX file of unsigned "
        f"bytes with {axes} axes, got {found}; download the file again.",
    )
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", contents[4:start].ljust(4 * axes, b"\0"))
    expected = start + math.prod(shape)
    require(
        len(contents) == expected,
        f"{path} must have {expected} bytes for an array of shape {shape}, got "
        f"{len(contents)}; download the file again.",
    )
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def _contents(path: Path) -> bytes:
    try:
        contents = path.read_bytes()
        return gzip.decompress(contents) if path.suffix == ".gz" else contents
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}; download the file again."
        ) from None

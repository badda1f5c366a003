"""The data files of this repository, and the check of their contents."""

import hashlib
from pathlib import Path

from experiments.settings.rules import ConfigError, require

DATA = Path(__file__).resolve().parent.parent / "data"
# Name: sha256 of the file.
SHA256 = {
    "digits8x8.npz": "6f801551877abf69fbf3711373bb642a18dc933430a3385cd6febc235225ea6f",
    "japanese_vowels.npz": (
        "424991bc6050405433247320e63e247b680c71fae4a26c6c6f9e8766341e61b9"
    ),
    "shakespeare9.txt.xz": (
        "c8a48f80e1019fe0f904fdd88b2bee82dc49930793b1912afe64d4086dad51bb"
    ),
}


def data_path(name: str, folder: Path = DATA) -> Path:
    """Returns the path of a data file, without reading the file.

    Args:
      name: name of the file, a key of `SHA256`.
      folder: folder of the data files. Default: `experiments/data`.

    Raises:
      ConfigError: no data file has this name.
    """
    require(name in SHA256, f"`name` must be one of {list(SHA256)}, got {name!r}.")
    return folder / name


def read_bytes(name: str, folder: Path = DATA) -> bytes:
    """Returns the contents of a data file, after comparing their sha256.

    Args:
      name: name of the file, a key of `SHA256`.
      folder: folder of the data files. Default: `experiments/data`.

    Raises:
      ConfigError: the file is missing, unreadable, or has other contents.
    """
    path = data_path(name, folder)
    try:
        contents = path.read_bytes()
    except FileNotFoundError:
        raise _error(path, "is missing", "no file") from None
    except OSError as error:
        raise _error(path, "cannot be read", error.strerror) from None
    found = hashlib.sha256(contents).hexdigest()
    if found != SHA256[name]:
        got = f"sha256 {found} ({len(contents)} bytes)"
        raise _error(path, "is damaged", got)
    return contents


def _error(path: Path, problem: str, got: str) -> ConfigError:
    return ConfigError(
        f"{path} {problem}: expected sha256 {SHA256[path.name]}, got {got}; "
        f"restore it with `git checkout -- experiments/data/{path.name}`."
    )

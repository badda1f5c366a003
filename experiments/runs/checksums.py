"""Checksums: they say whether a folder of files is as it was written.

`checksums.json` in the folder has the folder's name, the SHA-256 of every other file,
and notes on the contents. It is written last: a folder without it is incomplete.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST = "checksums.json"


class Damaged(Exception):
    """A file is not as it was written; the message names it."""


def seal(folder: Path, notes: Any) -> None:
    """Writes the files of a folder to disk, and then their checksums.

    Args:
      folder: the folder; its files do not change any more.
      notes: what else to store: a JSON value, covered by a checksum of its own.
    """
    contents = {"name": folder.name, "files": _hashes(folder), "notes": notes}
    text = json.dumps(contents | {"sha256": _hash(contents)}, indent=1)
    beside = folder / f"{MANIFEST}.new"
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, folder / MANIFEST)


def is_sealed(folder: Path) -> bool:
    """Says whether the checksums of a folder were written."""
    return (folder / MANIFEST).is_file()


def verified(folder: Path) -> Any:
    """Compares all files of a sealed folder with their checksums; returns the notes.

    Raises:
      Damaged: a file is missing or differs, or the folder has another name.
    """
    path = folder / MANIFEST
    try:
        contents = json.loads(path.read_bytes())
        is_whole = contents.pop("sha256") == _hash(contents)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise Damaged(f"{path} is damaged: it is not as it was written")
    name = contents.get("name", folder.name)
    if name != folder.name:
        raise Damaged(f"{folder} has been renamed: it was written as {name}")
    for name, (size, expected) in contents["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing")
        actual = path.stat().st_size
        if actual != size:
            raise Damaged(
                f"{path} is damaged: it has {actual} bytes in place of {size}"
            )
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise Damaged(f"{path} is damaged: its checksum differs")
    return contents["notes"]


def _hash(contents: dict[str, Any]) -> str:
    text = json.dumps(contents, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _hashes(folder: Path) -> dict[str, tuple[int, str]]:
    """Writes all files to disk; returns their sizes and hashes, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != f"{MANIFEST}.new":
            # Opened for writing because Windows syncs no other files.
            with path.open("r+b") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            name = path.relative_to(folder).as_posix()
            found[name] = path.stat().st_size, digest
    return found

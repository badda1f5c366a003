"""Saves and loads safetensors files."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from rnncells.interop import loading

Path = str | os.PathLike[str]


def save(
    path: Path, variables: loading.Params, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes variables to a file.

    Args:
      path: an existing file is replaced.
      variables: nested dictionaries of arrays, as `layer.init` returns them, or a
        `flax.nnx.State`, whose parameters are saved; empty dictionaries are not saved.
      metadata: text to store in the file, by name, for example a config in JSON.

    Raises:
      ImportError: safetensors is not installed.
      ValueError: a name contains `/`, which separates the names of nested dictionaries.
      TypeError: `variables` is not a tree of nested dictionaries; a leaf is not an
        array of numbers; `metadata` is not text.
    """
    variables = loading.plain(variables)
    if not isinstance(variables, Mapping):
        raise TypeError(
            "`variables` must be nested dictionaries of arrays, got "
            f"{type(variables).__name__}. Save other trees with Orbax."
        )
    names = {name for path in traverse_util.flatten_dict(variables) for name in path}
    if wrong := sorted(name for name in names if "/" in name):
        raise ValueError(f"names in `variables` must not contain `/`, got {wrong}.")
    metadata = dict(metadata or {})
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise TypeError(f"`metadata` must map names to text, got {metadata}.")
    arrays = {
        name: np.asarray(loading.as_array(name, leaf), order="C")
        for name, leaf in loading.flatten(dict(variables)).items()
    }
    with _library() as library:
        # Safetensors cannot read a file that has no arrays and empty metadata.
        library.numpy.save_file(arrays, path, metadata or None)


def load(path: Path, like: loading.Params | None = None) -> loading.Params:
    """Returns the variables that `save` wrote, as NumPy arrays.

    Args:
      path: path of the file.
      like: variables, or their shapes from `jax.eval_shape(layer.init, key, inputs)`.
        The arrays must have these names and shapes, and are cast to these dtypes. None
        returns the arrays as they are in the file.

    Raises:
      ImportError: safetensors is not installed.
      ValueError: the error lists arrays that are missing, unknown, or have another
        shape than in `like`. Or the file is not a safetensors file.
    """
    arrays = load_arrays(path)
    if like is not None:
        expected = loading.flatten(loading.plain(like))
        loading.check_arrays(f"`{os.fspath(path)}`", arrays, loading.shapes(expected))
        arrays = {k: np.asarray(v, expected[k].dtype) for k, v in arrays.items()}
    return traverse_util.unflatten_dict(arrays, sep="/")


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of any safetensors file, by name; see `load` for errors."""
    with _library(path) as library:
        return library.numpy.load_file(path)


def load_metadata(path: Path) -> dict[str, str]:
    """Returns the metadata of a file, text by name; see `load` for errors."""
    with _library(path) as library:
        with library.safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})


@contextlib.contextmanager
def _library(loaded: Path | None = None) -> Iterator[Any]:
    """Yields the package safetensors; its errors say which file is loaded."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "`rnncells.interop.files` needs safetensors: in a clone of rnncells, pip "
            "install '.[interop]'."
        ) from error
    try:
        yield safetensors
    except safetensors.SafetensorError as error:
        if loaded is None:
            raise
        raise ValueError(
            f"`path` must be a safetensors file, got {os.fspath(loaded)!r}: {error}"
        ) from error

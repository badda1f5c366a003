"""Safetensors files: of our parameters, and of other libraries' arrays.

They hold named arrays and no code, and other languages read them too. Needs the extra
`interop`.

>>> from rnncells.interop import files, pytorch
>>> files.save("model.safetensors", variables, {"task": "copy"})  # doctest: +SKIP
>>> variables = files.load("model.safetensors")  # doctest: +SKIP
>>> files.load_metadata("model.safetensors")  # doctest: +SKIP
{'task': 'copy'}

A PyTorch model's file is loaded in one line, which also says what does not fit:

>>> variables = pytorch.from_state_dict(  # doctest: +SKIP
...     layer, files.load_arrays("torch.safetensors"), prefix="encoder."
... )

=================================== =====================================
in the variables                    in the file
=================================== =====================================
`["params"]["layers_0"]["cell"]`    `params/layers_0/cell/...`
bfloat16, float16, float32, ...     the same, to the bit
=================================== =====================================

`jax.export`, `orbax` and Flax's own bytes keep more: programs, sharded arrays,
optimizers. These files keep arrays.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np
from flax import traverse_util

from rnncells.interop.layout import Params, as_array, check_arrays, flatten, shapes

Path = str | os.PathLike[str]


def save(
    path: Path, variables: Params, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes variables to a file.

    Args:
      path: of the file, which is replaced if it is there.
      variables: nested dictionaries of arrays, as `layer.init` returns them; empty
        dictionaries are left out.
      metadata: text to keep in the file, by name, as a config in JSON.

    Raises:
      ImportError: safetensors is not installed.
      ValueError: a name with `/`, which joins the names of what is nested.
      TypeError: other trees than nested dictionaries; a leaf that is no array of
        numbers; metadata that are no text.
    """
    library = _safetensors()
    if not isinstance(variables, Mapping):
        raise TypeError(
            "`variables` must be nested dictionaries of arrays, got "
            f"{type(variables).__name__}. (Orbax keeps other trees, as an optimizer's.)"
        )
    names = {name for path in traverse_util.flatten_dict(variables) for name in path}
    if any("/" in name for name in names):
        raise ValueError(
            f"names in `variables` must be without `/`, got "
            f"{sorted(name for name in names if '/' in name)}."
        )
    metadata = dict(metadata or {})
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise TypeError(f"`metadata` must be text by name, got {metadata}.")
    arrays = {
        name: np.asarray(as_array(name, leaf), order="C")
        for name, leaf in flatten(variables).items()
    }
    # Without arrays the library cannot read back metadata that are empty.
    library.numpy.save_file(arrays, path, metadata or None)


def load(path: Path, like: Params | None = None) -> Params:
    """Returns the variables that `save` wrote, as NumPy's arrays.

    Args:
      path: of the file.
      like: variables, or their shapes, `jax.eval_shape(layer.init, key, inputs)`, that
        say which arrays there must be, their shapes, and the dtypes to return. None:
        what the file has.

    Raises:
      ImportError: safetensors is not installed.
      ValueError: arrays that are missing, unknown, or of another shape than in `like`:
        all are named.
    """
    arrays = load_arrays(path)
    if like is not None:
        expected = flatten(like)
        check_arrays(f"`{os.fspath(path)}`", arrays, shapes(expected))
        arrays = {k: np.asarray(v, expected[k].dtype) for k, v in arrays.items()}
    return traverse_util.unflatten_dict(arrays, sep="/")


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of any safetensors file by their names in it.

    Args:
      path: of the file.

    Raises:
      ImportError: safetensors is not installed.
      ValueError: another kind of file.
    """
    library = _safetensors()
    with _named(path, library.SafetensorError):
        return library.numpy.load_file(path)


def load_metadata(path: Path) -> dict[str, str]:
    """Returns the text that was kept in a file, by name.

    Args:
      path: of the file.

    Raises:
      ImportError: safetensors is not installed.
      ValueError: another kind of file.
    """
    library = _safetensors()
    with _named(path, library.SafetensorError):
        with library.safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})


@contextlib.contextmanager
def _named(path: Path, error_of_library: type[Exception]) -> Iterator[None]:
    """Names the file in the error about one of another kind."""
    try:
        yield
    except error_of_library as error:
        raise ValueError(
            f"`path` must be a safetensors file, got {os.fspath(path)!r}: {error}"
        ) from error


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "`rnncells.interop.files` needs safetensors: pip install "
            "'rnncells[interop]'."
        ) from error
    return safetensors

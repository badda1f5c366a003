"""Our layers and Flax's, which share their parameters, and a check of their values."""

import dataclasses
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import rnncells
from benchmarks import own_cells
from benchmarks.contenders import Contender, compile_contender, in_mode, make_inputs
from benchmarks.sizes import KERNEL, Size


def make_rnncells(cell: str, size: Size, mode: str) -> Contender:
    """Returns our layer as a contender."""
    return _make("rnncells", rnncells, cell, size, mode)


def make_flax(cell: str, size: Size, mode: str) -> Contender:
    """Returns Flax's layer with the cell of the same name as a contender."""
    return _make("flax", nn, cell, size, mode)


def make_flax_optimized(cell: str, size: Size, mode: str) -> Contender:
    """Returns Flax's layer with its faster version of a cell as a contender."""
    return _make("flax-optimized", nn, f"Optimized{cell}", size, mode)


def make_our_cell(cell: str, size: Size, mode: str) -> Contender:
    """Returns our layer with our cell of the same equations as a contender."""
    return _make("our-cell", rnncells, cell.removeprefix("Compact"), size, mode)


def make_flax_cell(cell: str, size: Size, mode: str) -> Contender:
    """Returns our layer with Flax's cell as a contender."""
    return _make("flax-cell", rnncells, cell, size, mode, cells=nn)


def _make(
    name: str,
    library: ModuleType,
    cell: str,
    size: Size,
    mode: str,
    cells: ModuleType | None = None,
) -> Contender:
    layer = _layer(library, cell, size, cells)
    inputs = jnp.asarray(make_inputs(size), size.dtype)
    params = _params(library, cell, size)
    return compile_contender(name, in_mode(layer.apply, mode), params, inputs)


def _layer(
    library: ModuleType, cell: str, size: Size, cells: ModuleType | None = None
) -> nn.Module:
    """Returns the layer of rnncells or of flax.linen, which have the same names.

    Args:
      library: has the layer.
      cell: name of the cell.
      size: sizes of the cell.
      cells: has the cell; default: `own_cells`, or else `library`.
    """
    kernel = (KERNEL,) if size.image else ()
    if hasattr(own_cells, f"{cell}Cell"):
        made = getattr(own_cells, f"{cell}Cell")(size.features)
    else:
        dtype = jnp.dtype(size.dtype)
        made = getattr(library if cells is None else cells, f"{cell}Cell")(
            size.features, *kernel, dtype=dtype, param_dtype=dtype
        )
    return library.RNN(made, time_major=True)


def _params(library: ModuleType, cell: str, size: Size) -> Any:
    """Returns initial parameters, drawn in float32 as Flax fails in half precision."""
    layer = _layer(library, cell, dataclasses.replace(size, dtype="float32"))
    # One step is enough, because shapes of parameters do not depend on time.
    params = jax.jit(layer.init)(jax.random.key(0), make_inputs(size)[:1])
    return jax.tree.map(lambda leaf: leaf.astype(size.dtype), params)


def check_equal_to_flax(cell: str) -> None:
    """Compares our outputs and gradients with Flax's, for the same parameters.

    Args:
      cell: a name in `benchmarks.sizes.CELLS`.

    Raises:
      RuntimeError: they differ, so their times cannot be compared.
    """
    image = (6, 5) if cell == "ConvLSTM" else ()
    size = Size("check", 3, 7, 5, 4, image=image)
    inputs = jnp.asarray(make_inputs(size))
    layers = [_layer(library, cell, size) for library in (rnncells, nn)]
    # Initial biases are 0, which would hide swapped biases.
    params = jax.tree.map(_perturbed, _params(nn, cell, size))
    for mode in ("forward", "gradient"):
        with jax.default_matmul_precision("highest"):
            ours, theirs = (
                jax.jit(in_mode(layer.apply, mode))(params, inputs) for layer in layers
            )
        same = jax.tree.map(
            lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs
        )
        if not all(jax.tree.leaves(same)):
            raise RuntimeError(f"{cell}: ours and Flax's {mode} differ: {same}.")


def _perturbed(leaf: jax.Array) -> jax.Array:
    noise = np.random.default_rng(1).standard_normal(leaf.shape, dtype=np.float32)
    return leaf + 0.1 * noise

"""`initialize_carry` in its old form, beside today's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from rnncells.base import RNNCellBase
from rnncells.carry import Carry
from rnncells.legacy.notice import notice

KEYWORDS = {"batch_dims", "size", "init_fn"}
Size = int | tuple[int, ...]
ZEROS = nn.initializers.zeros_init()


def full_shape(batch_dims: tuple[int, ...], size: Size) -> tuple[int, ...]:
    """Returns the shape of a part of the carry."""
    return (*batch_dims, *(size if isinstance(size, tuple | list) else (size,)))


def old_carry(
    parts: int,
    rng: jax.Array,
    batch_dims: tuple[int, ...],
    size: Size,
    init_fn: Callable = ZEROS,
) -> Carry:
    """Returns a carry as Flax <= 0.6.11 made it: of float32, whatever `param_dtype`.

    Args:
      parts: 1, or 2 for `(c, h)`, which have half of the key each.
      rng: random key.
      batch_dims: shape of the batch.
      size: number of features, or the shape of an image with its features.
      init_fn: initialiser, called without a dtype.
    """
    shape = full_shape(batch_dims, size)
    if parts == 1:
        return init_fn(rng, shape)
    return tuple(init_fn(key, shape) for key in jax.random.split(rng, parts))


class InitializeCarry:
    """A method of instances that answers the class too, and three arguments.

    Args:
      parts: of the carry.
    """

    # Flax wraps methods of modules, and would take this one for a property.
    nowrap = True

    def __init__(self, parts: int):
        self.parts = parts

    def __get__(self, cell: nn.Module | None, cls: type) -> Callable[..., Carry]:
        return partial(self._call, cell, cls)

    def _call(self, cell: nn.Module | None, cls: type, *args, **kwargs) -> Carry:
        if cell is not None and len(args) < 3 and not KEYWORDS & set(kwargs):
            return RNNCellBase.initialize_carry(cell, *args, **kwargs)
        return self._call_old(cls, *args, **kwargs)

    def _call_old(
        self,
        cls: type,
        rng: jax.Array,
        batch_dims: tuple[int, ...],
        size: Size,
        init_fn: Callable = ZEROS,
    ) -> Carry:
        shape = full_shape(batch_dims, size)
        fields = [str(shape[-1])] + (["kernel_size"] * hasattr(cls, "state_shape"))
        fields += ["carry_init=init_fn"] * (init_fn is not ZEROS) + ["parent=None"]
        notice(
            f"`{cls.__name__}.initialize_carry(key, batch_dims, size)` is of Flax <= "
            f"0.6.11: write {cls.__name__}({', '.join(fields)})"
            f".initialize_carry(key, {shape})."
        )
        return old_carry(self.parts, rng, batch_dims, size, init_fn)


def is_old_method(cell: nn.Module) -> bool:
    """Says whether a cell has a static `initialize_carry`, as before Flax 0.7."""
    for base in type(cell).__mro__:
        if "initialize_carry" in vars(base):
            return isinstance(vars(base)["initialize_carry"], staticmethod)
    return False


def make_old_carry(
    cell: nn.Module, key: jax.Array, batch_dims: tuple[int, ...], size: Size
) -> Any:
    """Returns the carry of a cell by its old form, and warns of nothing."""
    for base in type(cell).__mro__:
        method = vars(base).get("initialize_carry")
        if isinstance(method, InitializeCarry):
            return old_carry(method.parts, key, batch_dims, size)
        if method is not None:
            break
    return cell.initialize_carry(key, batch_dims=batch_dims, size=size)

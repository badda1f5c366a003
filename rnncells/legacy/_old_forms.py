"""Notices of old forms, and `initialize_carry` with old arguments, or today's.

A notice is a deprecation warning at the user's line, or an error in strict mode.
"""

import contextlib
import contextvars
import datetime
import inspect
import os
from collections.abc import Callable, Iterator
from functools import wraps
from types import MethodType
from typing import Any

import flax.linen as nn
import jax
from chex import PRNGKey

from rnncells._user_warning import user_frame, warn_at
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry

# This version removes `rnncells.legacy`, and not before this day.
REMOVAL_DATE = datetime.date(2028, 1, 1)
REMOVAL_VERSION = "2.0"

_is_strict = os.environ.get("RNNCELLS_LEGACY_STRICT", "0") not in ("", "0")
# For this thread or task.
_is_strict_here = contextvars.ContextVar("_is_strict_here", default=False)


# An old form, equal for all values of its arguments; the last version of Flax that had
# it; and the new code, with other changes that it needs.
Advice = tuple[str, str, str]


def notice(old: str, last: str, new: str) -> None:
    """Warns about an old form, see `Advice`, once for each line of the user's code.

    In strict mode, it raises TypeError.
    """
    advice = f"{old} was removed after Flax {last}. Write {new}."
    if _is_strict or _is_strict_here.get():
        raise TypeError(advice)
    removal = f"(Removed in rnncells {REMOVAL_VERSION}; see help(rnncells.legacy).)"
    text = f"{advice} {removal}"
    frame = user_frame()
    registry, line = frame.f_globals.get("__warningregistry__", {}), frame.f_lineno
    form, said = (old, line), (text, DeprecationWarning, line)
    if form in registry:
        # The first warning may have had another text, and `warnings` compares texts,
        # after it has emptied a registry that is older than the filters.
        registry[said] = True
    registry = warn_at(frame, text, DeprecationWarning)
    # A filter like "always" would repeat the warning each time the line runs.
    registry[form] = registry[said] = True


def user_class(cls: type) -> type:
    """Returns the class that the user wrote: the base of a class made by `nn.scan`."""
    lifted = nn.transforms.__name__
    return next(base for base in cls.__mro__ if base.__module__ != lifted)


def how_made(cls: type) -> tuple[str, str]:
    """Returns a name for a class in messages, and an explanation of that name.

    A class made by `nn.scan` has a name from Flax, and the user's name is unknown.
    """
    name = user_class(cls).__name__
    if user_class(cls) is cls:
        return name, ""
    return "Lifted", f" (Lifted is a lifted {name})"


def set_strict(is_strict: bool = True) -> None:
    """Makes old forms raise `TypeError`, or warn again.

    The environment variable `RNNCELLS_LEGACY_STRICT=1` sets the initial value.
    """
    global _is_strict
    _is_strict = is_strict


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Makes old forms raise `TypeError` in a `with` block, in this thread only.

    >>> import jax, rnncells.legacy as nn
    >>> with nn.strict():
    ...     nn.GRUCell.initialize_carry(jax.random.key(0), (2,), 4)
    Traceback (most recent call last):
    TypeError: `GRUCell.initialize_carry(key, batch_dims, size)` was removed after \
Flax 0.6.11. \
Write `GRUCell(size, parent=None).initialize_carry(key, (*batch_dims, size))`.
    """
    before = _is_strict_here.set(True)
    try:
        yield
    finally:
        _is_strict_here.reset(before)


KEYWORDS = {"batch_dims", "size", "init_fn"}
Size = int | tuple[int, ...]


def old_carry(
    parts: int,
    rng: PRNGKey,
    batch_dims: tuple[int, ...],
    size: Size,
    init_fn: Callable | None = None,
) -> Carry:
    """Returns a carry with the values of Flax <= 0.6.11.

    With 2 `parts`, `(c, h)`, each part gets its own key, split from `rng`.
    """
    if not isinstance(batch_dims, tuple | list):
        raise TypeError(
            "`batch_dims` of `initialize_carry` must be a tuple of sizes, got "
            f"{batch_dims!r}."
        )
    init_fn = nn.initializers.zeros_init() if init_fn is None else init_fn
    shape = (*batch_dims, *(size if isinstance(size, tuple | list) else (size,)))
    if parts == 1:
        return init_fn(rng, shape)
    return tuple(init_fn(key, shape) for key in jax.random.split(rng, parts))


class InitializeCarry:
    """The method `initialize_carry` of a cell whose carry has `parts` arrays.

    On the class it takes the old arguments, on an instance the old or the new ones.
    """

    # Flax wraps methods of modules, and would treat this one as a property.
    nowrap = True

    def __init__(self, parts: int):
        self.parts = parts

    def __set_name__(self, owner: type, name: str) -> None:
        def of_old(
            cell: nn.Module | type,
            rng: PRNGKey,
            batch_dims: tuple[int, ...],
            size: Size,
            init_fn: Callable | None = None,
        ) -> Carry:
            """Returns a carry as in Flax <= 0.6.11, in float32 for all `param_dtype`.

            Args:
              rng: random key.
              batch_dims: shape of the batch.
              size: number of features, or the shape of an image with its features.
              init_fn: initializer, called without a dtype; zeros if None.
            """
            notice(*_advice(cell, init_fn is not None))
            return old_carry(self.parts, rng, batch_dims, size, init_fn)

        @wraps(RNNCellBase.initialize_carry)
        def of_today(cell: RNNCellBase, *args: Any, **kwargs: Any) -> Carry:
            if len(args) < 3 and not KEYWORDS & set(kwargs):
                return RNNCellBase.initialize_carry(cell, *args, **kwargs)
            return of_old(cell, *args, **kwargs)

        for function in (of_old, of_today):
            # Python shows these names in errors and in `help`.
            function.__name__, function.__module__ = name, owner.__module__
            function.__qualname__ = f"{owner.__name__}.{name}"
        self.of_class, self.of_instance = of_old, of_today

    def __get__(self, cell: nn.Module | None, cls: type) -> Callable[..., Carry]:
        if cell is None:
            return MethodType(self.of_class, cls)
        return MethodType(self.of_instance, cell)


def features_of(cell: type, size: str) -> str:
    """Returns the code of a cell's `features`, given the code of an old size."""
    return f"{size}[-1]" if hasattr(cell, "state_shape") else size


def _advice(cell: nn.Module | type, has_init_fn: bool) -> Advice:
    """Returns the replacement of an old call on a cell or a class."""
    cls = cell if isinstance(cell, type) else type(cell)
    features = features_of(cls, "size")
    is_conv = features != "size"
    call = f"initialize_carry(key, (*batch_dims, {'*' * is_conv}size))"
    if not isinstance(cell, type):
        also = " and `carry_init=init_fn`" * has_init_fn
        return (
            "`cell.initialize_carry(key, batch_dims, size)`",
            "0.6.11",
            f"`cell.{call}`, and construct the cell with `features={features}`{also}",
        )
    fields = [features] + ["kernel_size"] * is_conv
    fields += ["carry_init=init_fn"] * has_init_fn + ["parent=None"]
    name = user_class(cls).__name__
    today = {"ConvLSTM": "ConvLSTMCell"}.get(name, name)
    return (
        f"`{name}.initialize_carry(key, batch_dims, size)`",
        "0.6.11",
        f"`{today}({', '.join(fields)}).{call}`",
    )


def carry_method(cell: nn.Module) -> Any:
    """Returns the attribute `initialize_carry` of a cell's class, unbound, or None."""
    return inspect.getattr_static(type(cell), "initialize_carry", None)


def _has_own_old_form(cell: nn.Module) -> bool:
    """Says whether a user's `initialize_carry` takes old, or any, arguments."""
    method = carry_method(cell)
    # The method of RNNCellBase takes any arguments in order to refuse old ones.
    is_of_today = method in (None, RNNCellBase.initialize_carry)
    if is_of_today or isinstance(method, InitializeCarry):
        return False
    try:
        inspect.signature(cell.initialize_carry).bind(None, batch_dims=0, size=0)
    except TypeError:
        return False
    return True


def advice_on_cell(cell: nn.Module) -> str:
    """Returns how to change a cell so that its RNN needs no `cell_size`."""
    size = features_of(type(cell), "cell_size")
    features = f"construct the cell with `features={size}`"
    if not _has_own_old_form(cell):
        return f"and {features}"
    name = user_class(type(cell)).__name__
    return (
        f"and {features}. {name} needs a field `features`, a property "
        "`num_feature_axes`, and an instance method `initialize_carry(self, key, "
        "input_shape)`: docs/migration.md has an example"
    )


def make_old_carry(
    cell: nn.Module, key: PRNGKey, batch_dims: tuple[int, ...], size: Size
) -> Any:
    """Returns the carry from a cell's old `initialize_carry`, without a warning."""
    method = carry_method(cell)
    if isinstance(method, InitializeCarry):
        return old_carry(method.parts, key, batch_dims, size)
    if not _has_own_old_form(cell):
        raise TypeError(
            "`cell_size` of RNN needs a cell with `initialize_carry(rng, batch_dims, "
            f"size)`, as in Flax <= 0.6.11, but {type(cell).__name__} has other "
            "arguments there. Write RNN(cell)."
        )
    return cell.initialize_carry(key, batch_dims=batch_dims, size=size)

"""Deprecation warnings at the user's line, or errors in strict mode."""

import contextlib
import contextvars
import datetime
import os
import sys
import warnings
from collections.abc import Iterator

import flax.linen
import jax

# This version removes `rnncells.legacy`, and not before this day.
REMOVAL_DATE = datetime.date(2028, 1, 1)
REMOVAL_VERSION = "2.0"

_INTERNAL = tuple(
    os.path.join(os.path.dirname(file), "")
    for file in (os.path.dirname(__file__), flax.__file__, jax.__file__)
)
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
    frame = sys._getframe(1)
    # The user's frame: not in the shim, Flax, JAX or the `__init__` of a dataclass.
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_INTERNAL)
        or (frame.f_code.co_filename, frame.f_code.co_name) == ("<string>", "__init__")
    ):
        frame = frame.f_back
    if _is_strict or _is_strict_here.get():
        raise TypeError(advice)
    removal = f"(Removed in rnncells {REMOVAL_VERSION}; see help(rnncells.legacy).)"
    text = f"{advice} {removal}"
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    line = frame.f_lineno
    form, said = (old, line), (text, DeprecationWarning, line)
    if form in registry:
        # The first warning may have had another text, and `warnings` compares texts,
        # after it has emptied a registry that is older than the filters.
        registry[said] = True
    warnings.warn_explicit(
        text,
        DeprecationWarning,
        frame.f_code.co_filename,
        line,
        module=frame.f_globals.get("__name__", "<string>"),
        registry=registry,
    )
    # A filter like "always" would repeat the warning each time the line runs.
    registry[form] = registry[said] = True


def user_class(cls: type) -> type:
    """Returns the class that the user wrote: the base of a class made by `nn.scan`."""
    lifted = flax.linen.transforms.__name__
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

"""How old forms are answered: by a warning at the user's line, or by an error."""

import contextlib
import contextvars
import datetime
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import flax.linen
import jax

# When `rnncells.legacy` goes: not before this day, and with this version.
REMOVAL_DATE = datetime.date(2028, 1, 1)
REMOVAL_VERSION = "2.0"

_INTERNAL = tuple(
    os.path.join(os.path.dirname(file), "")
    for file in (os.path.dirname(__file__), flax.__file__, jax.__file__)
)
_is_strict = os.environ.get("RNNCELLS_LEGACY_STRICT", "0") not in ("", "0")
# Of this thread, or task.
_is_strict_here = contextvars.ContextVar("_is_strict_here", default=False)


class Advice(NamedTuple):
    """What is to be written in place of an old form.

    Attributes:
      old: the form, which is the same whatever values it is given.
      last: the version of Flax that had it last.
      new: code, and what else is to be changed for it.
    """

    old: str
    last: str
    new: str

    def __str__(self) -> str:
        return f"{self.old} is of Flax <= {self.last}: write {self.new}."


def notice(advice: Advice) -> None:
    """Warns of an old form, once for each place in the user's code that has it.

    Raises:
      TypeError: in strict mode.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame):
        frame = frame.f_back
    if _is_strict or _is_strict_here.get():
        raise TypeError(str(advice))
    removal = f"(Removed in rnncells {REMOVAL_VERSION}; see help(rnncells.legacy).)"
    text = f"{advice} {removal}"
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    line = frame.f_lineno
    form, said = (advice.old, line), (text, DeprecationWarning, line)
    if form in registry:
        # It may have been noticed in other words. `warnings` looks for the text, when
        # it has emptied a registry that is older than the filters.
        registry[said] = True
    warnings.warn_explicit(
        text,
        DeprecationWarning,
        frame.f_code.co_filename,
        line,
        module=frame.f_globals.get("__name__", "<string>"),
        registry=registry,
    )
    # Filters like "always" would repeat it each time that the line is run.
    registry[form] = registry[said] = True


def written(cls: type) -> type:
    """Returns the class that the user wrote: of one that `nn.scan` made, its base."""
    made = flax.linen.transforms.__name__
    return next(base for base in cls.__mro__ if base.__module__ != made)


def how_made(cls: type) -> tuple[str, str]:
    """Returns how texts call a class, and what is to be said of it.

    What `nn.scan` makes has a name of Flax's, and the user's is not known.
    """
    name = written(cls).__name__
    if written(cls) is cls:
        return name, ""
    return "Lifted", f", where Lifted is {name} lifted,"


def _is_internal(frame: FrameType) -> bool:
    """Says whether a frame is of this module, of Flax, JAX or a dataclass."""
    code = frame.f_code
    is_generated = code.co_filename == "<string>" and code.co_name == "__init__"
    return is_generated or code.co_filename.startswith(_INTERNAL)


def set_strict(is_strict: bool = True) -> None:
    """Has old forms raise `TypeError` from now on, or warn again.

    The environment variable `RNNCELLS_LEGACY_STRICT=1` does the same from the start.
    """
    global _is_strict
    _is_strict = is_strict


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Has old forms raise `TypeError` inside of a `with` block, not in other threads.

    >>> import jax, rnncells.legacy as nn
    >>> with nn.strict():
    ...     nn.GRUCell.initialize_carry(jax.random.key(0), (2,), 4)
    Traceback (most recent call last):
    TypeError: `GRUCell.initialize_carry(key, batch_dims, size)` is of Flax <= 0.6.11: \
write `GRUCell(size, parent=None).initialize_carry(key, (*batch_dims, size))`.
    """
    before = _is_strict_here.set(True)
    try:
        yield
    finally:
        _is_strict_here.reset(before)

"""How old forms are answered: by a warning at the user's line, or by an error."""

import contextlib
import datetime
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType

import flax
import jax

# When `rnncells.legacy` goes: not before this day, and with this version.
REMOVAL_DATE = datetime.date(2028, 1, 1)
REMOVAL_VERSION = "2.0"

_INTERNAL = tuple(
    os.path.join(os.path.dirname(file), "")
    for file in (os.path.dirname(__file__), flax.__file__, jax.__file__)
)
_is_strict = os.environ.get("RNNCELLS_LEGACY_STRICT", "0") not in ("", "0")


def notice(text: str) -> None:
    """Warns of an old form, once for each place in the user's code that has it.

    Args:
      text: what is old, and what to write instead.

    Raises:
      TypeError: in strict mode.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame):
        frame = frame.f_back
    if _is_strict:
        raise TypeError(text)
    text = (
        f"{text} (`rnncells.legacy` goes with rnncells {REMOVAL_VERSION}, not before "
        f"{REMOVAL_DATE}; `rnncells migrate` rewrites files.)"
    )
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    line = frame.f_lineno
    warnings.warn_explicit(
        text,
        DeprecationWarning,
        frame.f_code.co_filename,
        line,
        module=frame.f_globals.get("__name__"),
        registry=registry,
    )
    # Filters like "always" would repeat it each time that the line is run.
    registry[text, DeprecationWarning, line] = True


def is_called_by_library() -> bool:
    """Says whether the caller's caller is code of this library, of Flax or of JAX.

    Flax makes its modules anew from their fields; that is no old form of the user's.
    """
    frame = sys._getframe(2)
    while frame is not None and _is_generated(frame):
        frame = frame.f_back
    return frame is not None and _is_internal(frame)


def _is_internal(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_INTERNAL) or _is_generated(frame)


def _is_generated(frame: FrameType) -> bool:
    """Says whether a frame is the constructor of a dataclass."""
    code = frame.f_code
    return code.co_filename == "<string>" and code.co_name == "__init__"


def set_strict(is_strict: bool = True) -> None:
    """Has old forms raise `TypeError` from now on, or warn again.

    The environment variable `RNNCELLS_LEGACY_STRICT=1` does the same from the start.
    """
    global _is_strict
    _is_strict = is_strict


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Has old forms raise `TypeError` inside of a `with` block.

    >>> import jax, rnncells.legacy as nn
    >>> with nn.strict():
    ...     nn.GRUCell.initialize_carry(jax.random.key(0), (2,), 4)
    Traceback (most recent call last):
    TypeError: `GRUCell.initialize_carry(key, batch_dims, size)` is of Flax <= 0.6.11: \
write GRUCell(4, parent=None).initialize_carry(key, (2, 4)).
    """
    before = _is_strict
    set_strict()
    try:
        yield
    finally:
        set_strict(before)

"""Warnings at the line of the user."""

import os
import sys
import warnings
from types import FrameType

import flax
import jax

_INTERNAL = tuple(
    os.path.dirname(file) + os.sep for file in (__file__, flax.__file__, jax.__file__)
)


def user_frame() -> FrameType:
    """Returns the innermost frame outside of rnncells, Flax, JAX and dataclasses."""
    frame, generated = sys._getframe(1), ("<string>", "__init__")
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_INTERNAL)
        or (frame.f_code.co_filename, frame.f_code.co_name) == generated
    ):
        frame = frame.f_back
    return frame


def warn_at(frame: FrameType, message: str, category: type[Warning]) -> dict:
    """Warns at a frame; returns its registry of warnings."""
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__", "<string>")
    place = frame.f_code.co_filename, frame.f_lineno, name
    warnings.warn_explicit(message, category, *place, registry)
    return registry


def warn(message: str) -> None:
    """Warns at the line of the user."""
    warn_at(user_frame(), message, UserWarning)
